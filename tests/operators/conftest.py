"""Registers every operator, whose declared cases are parameters of tests here."""

from cml_engine.ops.declaration.registry import load_families

load_families()
