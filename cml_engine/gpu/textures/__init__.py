"""Conversions between textures and tensors on the device."""
