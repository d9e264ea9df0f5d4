"""Benchmarks of the demo game's frames: the cost of networks, the machine's noise, reloads."""
