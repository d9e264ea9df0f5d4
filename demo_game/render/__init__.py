"""The game's picture: terrain from the agents' textures, plants, sea and sky, on wgpu in HLSL."""
