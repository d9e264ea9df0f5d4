"""Parses NNEF text to syntax trees, and prints them."""
