"""Charts of what `results` has read: drawings as SVG, curves as data."""
