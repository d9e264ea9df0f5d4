"""Benchmarks of single kernels against the device's peak rates."""
