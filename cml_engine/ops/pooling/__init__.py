"""Operators that slide a window without weights."""
