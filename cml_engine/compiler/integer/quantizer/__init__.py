"""From a network of floats and samples of its inputs to an integer network (docs/integer.md)."""
