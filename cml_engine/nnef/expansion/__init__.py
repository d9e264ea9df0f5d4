"""Converts syntax trees to graphs and back: evaluation, fragment expansion, operator signatures."""
