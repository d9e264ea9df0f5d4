"""NNEF text <-> syntax trees."""
