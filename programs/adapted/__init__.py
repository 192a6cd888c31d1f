"""Reports of settings that follow the links. Decides which changes are reported, each once, and in which words."""
