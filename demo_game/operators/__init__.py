"""The game's own operators in HLSL; importing this package registers them.

``land`` computes the noise that tiles start from, ``light`` and ``texels`` make textures of
tensors, ``scatter`` makes the instances of plants. ``exact`` has the operators of the integer
world.
"""

from demo_game.operators import exact, land, light, scatter, texels

__all__ = ["exact", "land", "light", "scatter", "texels"]
