"""Computes a part of the world before the game, on one machine or a cluster, into a Zarr store.

The game then reads the tiles of that part instead of computing them.
"""
