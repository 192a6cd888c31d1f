"""Plans of runs that nobody has rented yet: links, memory, merges, failures and cost of each program."""
