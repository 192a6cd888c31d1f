"""Decides how an island of several processes goes on without one of them.

That is: the parts of its state that are kept outside of the computing processes, and the work that is repeated when
those are started again.
"""
