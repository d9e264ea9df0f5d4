"""Operators whose operand says which elements they read or write."""
