"""Compares this engine's speed with others, on one network in one run: ``python tasks.py
bench``."""
