"""Exchanges between learners and syncers: messages, fragments, token accounts, and trees of parameters."""
