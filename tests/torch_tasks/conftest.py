"""Tests of tasks in PyTorch: collected where it is installed, and run by `make test-torch` alone."""

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []
