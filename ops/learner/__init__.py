"""Node bodies of learners. A fragment leaves in `fragment_send`."""
