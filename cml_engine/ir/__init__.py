"""Graphs and their properties as plain data: facts, layouts, device limits, textures."""
