"""Changes networks while a game runs. See docs/see_inside.md."""
