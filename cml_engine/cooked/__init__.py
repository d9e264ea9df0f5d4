"""Cooked networks: one file that is ready to run (docs/cooked.md specifies every byte).

The file needs no parsing, planning or compilation on the player's machine. ``cook`` writes files
and ``load_cooked`` reads them; ``schema.py`` declares its records.
"""

from __future__ import annotations

from cml_engine.cooked.cook import cook
from cml_engine.cooked.guess import DeviceGuess
from cml_engine.cooked.load import load_cooked
from cml_engine.cooked.profiles import PROFILES, Profile
from cml_engine.cooked.schema import CookedLimits

__all__ = ["PROFILES", "CookedLimits", "DeviceGuess", "Profile", "cook", "load_cooked"]
