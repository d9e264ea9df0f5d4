"""Quantizes a float network to an integer network with samples of its inputs (docs/integer.md)."""
