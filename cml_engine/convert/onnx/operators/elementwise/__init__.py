"""Rows of operators that work element by element."""
