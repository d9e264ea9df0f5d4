"""A custom operator: the cross product as one kernel instead of a composition of twelve."""
