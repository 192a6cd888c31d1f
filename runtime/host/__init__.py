"""Drives the core of one host: bodies, executors, payloads; alone in its process, or with all others in one."""
