"""Compiled networks that run: sessions, live changes, tiles, tuning, comparison of backends."""
