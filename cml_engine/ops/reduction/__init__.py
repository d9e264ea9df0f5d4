"""Operators that make few values of many: reductions, order, selection."""
