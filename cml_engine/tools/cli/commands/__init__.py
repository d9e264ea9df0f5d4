"""The commands of ``cml``: a module for each group of ``cml --help``, which it names ``GROUP``."""
