"""Reads and writes models: folders, archives, tensor files, quantisation files, and memory."""
