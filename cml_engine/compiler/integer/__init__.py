"""Integer inference, which is bit-identical on every machine (docs/integer.md)."""
