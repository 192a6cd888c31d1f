"""Decides how an island of several processes continues without one of them.

That is: the parts of its state that are kept outside of the computing processes, and the work that is repeated when
those are started again.
"""
