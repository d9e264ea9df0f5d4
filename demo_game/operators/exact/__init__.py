"""The operators around the integer agents: whole numbers from the seed to a tile.

``land`` is what tiles begin as (``demo_game/world/exact_noise.py`` on the GPU), ``ground`` what the
upres agent's result becomes and what the other agents are told of it, ``scatter`` the instances.
What they hand to a network is a float32 that holds a word times a power of two, which is exact; so
is what they take of one.
"""

from demo_game.operators.exact import ground, land, scatter

__all__ = ["ground", "land", "scatter"]
