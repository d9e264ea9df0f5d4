"""Operators with an operand that selects the elements they read or write."""
