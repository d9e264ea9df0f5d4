"""Compares this engine's speed with other engines' on one network: ``tasks.py bench``."""

from cml_engine.tools.cli.terminal import print_any_path

print_any_path()  # the tables' letters, such as ÷, are not in every encoding
