"""Comparisons: trains by several programs and seeds, and decides what the differences of their losses say."""
