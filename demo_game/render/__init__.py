"""Draws the game's picture with wgpu and HLSL: terrain, plants, sea and sky."""
