"""Command line, configuration and report."""
