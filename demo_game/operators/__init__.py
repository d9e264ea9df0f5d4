"""The game's own operators, in HLSL: importing this package registers them.

``land`` is what tiles begin as, ``light`` and ``texels`` make textures of tensors, ``scatter``
instances.
"""

from demo_game.operators import land, light, scatter, texels

__all__ = ["land", "light", "scatter", "texels"]
