"""The demo game, which uses only the public names of ``cml_engine`` and its scheduler."""

import sys
from importlib import import_module
from time import perf_counter

#: when the program began, by :func:`time.perf_counter`
STARTED = perf_counter()

if __name__ == "demo_game":
    # a checkout's folder, as in ``python -m demo_game``: its modules exist once, in cml_engine
    sys.modules[__name__] = import_module("cml_engine.demo_game")
