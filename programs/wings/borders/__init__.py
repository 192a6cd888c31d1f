"""What crossed between the machines of a run: decides how its accounts are added up and shown."""
