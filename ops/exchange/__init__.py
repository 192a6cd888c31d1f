"""What learners and syncers exchange: messages, fragments, token accounts, and trees of parameters."""
