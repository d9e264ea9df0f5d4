"""Operators that move elements and compute no values."""
