"""Measurements of the game's own frames, and reports of them."""
