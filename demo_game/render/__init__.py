"""Draws the game's picture with wgpu and HLSL: terrain from the networks' textures, plants, sea,
sky."""
