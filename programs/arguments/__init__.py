"""Conversion of a command line into options: their declarations, files of settings, and the help that shows them."""
