"""Rows of operators that slide windows or sample images."""
