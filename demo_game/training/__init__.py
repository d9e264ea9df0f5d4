"""Training of the demo game's three agents.

Simulations make the data, and networks learn to do the same in one pass.
"""
