"""Programs side by side: which runs a comparison is made of, carrying them out, and what follows from their figures."""
