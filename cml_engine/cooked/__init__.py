"""Networks in one file that is ready to run: docs/cooked.md has it to the byte.

Nothing of it is parsed, planned or compiled where it is played. ``cook`` writes, ``load_cooked``
reads; the sections stand in ``form.py``.
"""

from __future__ import annotations

from cml_engine.cooked.cook import cook
from cml_engine.cooked.guess import DeviceGuess
from cml_engine.cooked.load import load_cooked
from cml_engine.cooked.profiles import PROFILES, Profile

__all__ = ["PROFILES", "DeviceGuess", "Profile", "cook", "load_cooked"]
