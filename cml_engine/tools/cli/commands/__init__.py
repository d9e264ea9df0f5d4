"""The commands of ``cml``: a module for each group of ``cml --help``, or for a long command."""
