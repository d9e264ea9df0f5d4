"""Terrain by a diffusion network from an ONNX file: ``python -m examples.terrain_diffusion``."""
