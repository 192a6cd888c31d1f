"""Launches: runs on the machines of an engine, such as Slurm. What is submitted is files of today's commands, which do
the same when they are submitted by hand; nothing of isthmus is installed on an engine, and nothing of an engine is
known outside this room."""
