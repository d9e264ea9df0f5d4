"""The demo game. It uses the public names of ``cml_engine`` and ``scheduler`` only."""

from time import perf_counter

#: when the program began, by :func:`time.perf_counter`
STARTED = perf_counter()
