"""Passes from graph to graph, one module each; ``compiler/optimize.py`` defines their order."""
