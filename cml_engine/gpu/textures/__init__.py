"""Textures into tensors and tensors into textures, on the device."""
