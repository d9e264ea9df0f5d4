"""The export rules of all operators, a module per family."""
