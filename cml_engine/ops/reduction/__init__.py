"""Operators that reduce, order or select values."""
