"""A custom operator in an integer network: the steepness of a map, identical everywhere."""
