"""The succession of the home of a run: another machine takes the place of a home that was lost.

Here are the conditions on its folder there, its conversion to that of the new home, and the fate of the hosts that are
on that machine already.
"""
