"""The language model that comes along: its parameters, its forward pass and its loss; it knows nothing of islands."""
