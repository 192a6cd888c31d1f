"""Resources of a machine: a loop shared with threads, a disk, files that appear whole or grow."""
