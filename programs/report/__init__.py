"""The page `report.html`: templates, and what they show."""
