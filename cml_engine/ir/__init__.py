"""The graph of a network and its properties as plain data: facts, layouts, limits, textures."""
