"""The operators of the integer world around its networks, in integers from the seed to the tile.

``land`` computes the noise that tiles start from (``demo_game/world/exact_noise.py`` on the GPU).
``ground`` turns the upres network's result into heights and computes the other networks' features.
``scatter`` makes the instances. A network's inputs and outputs are float32 tensors that hold
integers times a power of two, which is exact.
"""

from demo_game.operators.exact import ground, land, scatter

__all__ = ["ground", "land", "scatter"]
