"""A custom operator in an integer network: how steep a map is, with the same bits everywhere."""
