"""Node bodies of syncers and of nodes that hold a model for them: when, with whom and on which terms rounds open."""
