"""`python -m isthmus.programs.command`: the console script, for processes of ours that have no path to it."""

from isthmus.programs.command.main import main

main()
