"""ncnn's two files: ``.param`` and ``.bin``."""
