"""Benchmarks of single kernels against what the device does at best."""
