"""Carries out a request on this machine, in this process or as processes, and writes the last files."""
