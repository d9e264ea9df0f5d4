"""The commands of ``cml``, one module each.

A module has a docstring (its help text), ``options(parser)`` and ``run(a)``.
"""
