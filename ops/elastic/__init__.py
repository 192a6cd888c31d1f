"""Decides how an island of several processes goes on without one of them: what is kept of its state outside of the
processes that compute, and what is done again when those are begun anew."""
