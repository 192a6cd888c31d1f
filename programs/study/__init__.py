"""What looks at runs on a terminal: `terminal` shows them and follows them. It imports `engine`, never the other way
round; what looks at runs otherwise is a wing."""
