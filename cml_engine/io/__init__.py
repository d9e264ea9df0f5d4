"""Reads and writes all files except models: arrays, pictures, JSON and the engine's own files."""
