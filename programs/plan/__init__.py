"""Plans of runs for which no machines are rented yet: links, memory, merges, failures and cost of each program."""
