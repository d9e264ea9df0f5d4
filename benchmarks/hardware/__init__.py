"""Judges the kernels of hardware by the vendors' compilers, without a card."""
