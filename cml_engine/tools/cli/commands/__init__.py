"""The commands of ``cml``, a module each, in rooms: its docstring, ``options(parser)`` and
``run(a)``."""
