"""Runs ``python -m demo_game``: the game in a window or headless.

Afterwards a background process cooks the networks if that has not been done yet.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from cml_engine.demo_game.command import main, say
    from cml_engine.demo_game.cooking import cook_in_background

    code = main()
    cook_in_background(say)
    sys.exit(code)
