"""Lowers integer networks to graphs of engine operators whose floats hold whole numbers."""
