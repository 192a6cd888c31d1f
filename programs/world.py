"""The pytest plugin of isthmus: the `world` fixture."""
