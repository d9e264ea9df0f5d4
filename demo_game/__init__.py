"""The demo game, which uses only the public names of ``cml_engine`` and its scheduler."""

from time import perf_counter

#: when the program began, by :func:`time.perf_counter`
STARTED = perf_counter()
