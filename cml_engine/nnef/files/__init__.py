"""Models on disk and in memory: folders, archives, tensor files, quantisation files."""
