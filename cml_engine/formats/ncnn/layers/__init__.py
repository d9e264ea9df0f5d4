"""ncnn's layer types, a module per family; importing this package registers them in the table."""

from __future__ import annotations

from importlib import import_module

for _name in ("activations", "arithmetic", "attention", "convolution", "embedding", "movement",
              "normalization", "pooling", "products", "recurrent", "reduction",
              "resizing"):  # fmt: skip
    import_module(f"{__name__}.{_name}")
