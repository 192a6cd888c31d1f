"""Past events of a run: decides what tape and books say of one merge, and whether a core decides the same again."""
