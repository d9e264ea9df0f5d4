"""A plan on a device: its pipelines and memory, and how it runs."""
