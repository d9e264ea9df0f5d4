"""Operators computed in bands of rows, one band after the other, so that what lies between them
takes the memory of a band: chosen where a plan takes more than it may.

A run of neighbouring operators is computed for some rows of its results at a time. Each band takes
the rows that it needs of what the run reads, those that its neighbours need too (the halo) among
them, so rows between are computed more than once. ``chart.py`` says which operators can, ``run.py``
which rows a band of them has, ``rewrite.py`` makes the graph that does it, ``usage.py`` tells what
memory the graph takes as it is, ``estimates.py`` what runs take in bands (of the ``facts.py`` of a
graph), ``search.py`` chooses, ``within.py`` is the whole.
"""
