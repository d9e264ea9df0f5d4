"""A photo enlarged four times by a trained network: ``python tasks.py upscale``."""
