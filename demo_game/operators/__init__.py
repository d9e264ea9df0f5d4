"""The game's own operators, in HLSL: importing this package registers them.

``land`` is what tiles begin as, ``light`` and ``texels`` make textures of tensors, ``scatter``
instances; ``exact`` are those of the integer world.
"""

from demo_game.operators import exact, land, light, scatter, texels

__all__ = ["exact", "land", "light", "scatter", "texels"]
