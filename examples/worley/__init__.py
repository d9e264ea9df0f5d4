"""A custom operator with branches and a loop that ends early: 3-D Worley noise."""
