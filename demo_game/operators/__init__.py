"""The game's own operators in HLSL; importing this package registers them."""

from cml_engine.demo_game.operators import exact, land, light, scatter

__all__ = ["exact", "land", "light", "scatter"]
