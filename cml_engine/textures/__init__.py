"""Textures as tensors, as data: formats, and what a host asks for. Knows no GPU API."""
