"""Integer inference: the same bits on every machine (docs/integer.md)."""
