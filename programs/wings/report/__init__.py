"""The page `report.html`: templates, and their contents."""
