"""Benchmarks of frames: what networks cost their host."""
