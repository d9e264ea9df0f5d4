"""Graphs and what describes them: facts, layouts, device limits, textures. Plain data."""
