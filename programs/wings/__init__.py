"""The wings: each a feature that nothing else needs, and a row of `programs.wing_table`."""
