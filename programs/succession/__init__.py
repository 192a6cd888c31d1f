"""Another machine becomes the home of a run whose home was lost: what its folder there must have, how it is made that
of the new home, and what becomes of the hosts that are on that machine already."""
