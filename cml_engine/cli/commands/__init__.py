"""The commands of ``cml``, a module each: its docstring, ``options(parser)`` and ``run(a)``."""
