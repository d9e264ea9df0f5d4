"""The measured networks as ncnn's files."""
