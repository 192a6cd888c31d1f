"""Node bodies of syncers and of what holds a model for them. Decides when rounds open, with whom, on which terms."""
