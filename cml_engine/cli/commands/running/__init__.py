"""Commands that run networks."""
