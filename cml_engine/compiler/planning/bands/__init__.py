"""Computes operators in bands of rows, one band after another, to limit the memory of a plan.

A run of neighbouring operators is computed for some rows of its results at a time, so that the
tensors inside the run take the memory of one band. A band reads the rows that it needs of the run's
inputs. Neighbouring bands share some of them (the halo), so rows inside the run are computed more
than once. Bands are used if a plan would exceed its memory limit.

``rewrite.py`` tells which operators can be computed in bands, computes the rows of each band and
builds the graph in bands. ``estimates.py`` estimates the memory of runs in bands.
``search.py`` chooses the runs and makes the draft in bands.
"""
