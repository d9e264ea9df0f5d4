"""The kernel of elementwise operators."""
