"""Compares this engine's speed with other engines' on one network: ``tasks.py bench``."""
