"""How files become training data: which of them are read (`found`), their documents (`rows`), and what a user is shown
of them before anything starts (`table`)."""
