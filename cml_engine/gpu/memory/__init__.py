"""GPU memory: allocators, heaps, staging buffers, textures."""
