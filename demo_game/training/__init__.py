"""Trains the demo game's three networks.

Simulations make the data, and the networks learn to do the same in one pass.
"""
