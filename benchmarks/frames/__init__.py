"""Benchmarks of frames: the cost of networks, the machine's noise, slices, and a busy neighbour."""
