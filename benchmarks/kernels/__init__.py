"""Benchmarks of kernels beside those of another checkout, and of graph passes."""
