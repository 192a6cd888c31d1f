"""`python -m isthmus`: the command, where an environment has no path to it."""

from isthmus.programs.command.main import main

main()
