"""Registers every operator before the tests of a GPU are collected."""

from cml_engine.ops.declaration.registry import load_families

load_families()
