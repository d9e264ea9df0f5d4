"""Runs ``python -m demo_game``: the game in a window or headless."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from cml_engine.demo_game.cores import CoreWatch

    cores = CoreWatch()  # it watches while the rest is imported
    from cml_engine.demo_game.command import main

    sys.exit(main(cores=cores))
