"""A render loop on plain wgpu with a network in its frames: ``python -m examples.plain_loop``."""
