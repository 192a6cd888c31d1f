"""Programs side by side: the runs of a comparison, their execution, and the conclusions from their figures."""
