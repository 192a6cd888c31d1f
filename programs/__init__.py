"""The programs: one short file per graph that can be trained."""
