"""Measures the game's frames, hashes its world, and reports both."""
