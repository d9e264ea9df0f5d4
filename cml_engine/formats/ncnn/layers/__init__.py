"""ncnn's types of layers, a module for each family; importing this enters them in the table."""

from __future__ import annotations

from importlib import import_module

for _name in ("activations", "arithmetic", "attention", "convolution", "movement",
              "normalization", "pooling", "products", "recurrent", "reduction", "resizing",
              "tables"):  # fmt: skip
    import_module(f"{__name__}.{_name}")
