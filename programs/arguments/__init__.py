"""How a command line becomes options: their declarations, files of settings, and the help that shows them."""
