"""Frames of the demo game: what networks cost them, the machine's noise, reloads."""
