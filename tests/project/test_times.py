"""Tests that times in the scheduler and the demo are measured, or belong to people.

A time of this machine in the source is wrong on the next one.
"""

import ast
import re

import pytest

from tests.fixtures.pages import ROOT

#: times that people need or notice, by file and name
OF_PEOPLE = {
    "demo_game/fitting.py": {"FINISHED_S"},
    "demo_game/flight.py": {"_STEP_S"},
    "demo_game/game.py": {"LEAST_MS"},
    "demo_game/headless.py": {"_PATIENCE_S", "_SAY_EVERY_S"},
    "demo_game/lockstep/connection.py": {"PATIENCE_S"},
    "demo_game/lockstep/play.py": {"_SAY_EVERY_S"},
    "demo_game/overlay/controls.py": {"_LEAST_BUDGET_MS"},
    "demo_game/overlay/overlay.py": {"_EVERY_S"},
    "demo_game/streaming.py": {"SOON_MS", "FADE_S"},
    "demo_game/window.py": {"_LONGEST_STEP_S", "_PAUSE_S"},
    # how long Job.wait sleeps between two looks at a job, and between looks at a host's thread
    "scheduler/jobs/lifecycle.py": {"_IDLE_S", "_LOOK_S"},
    "scheduler/planning/controller.py": {"_AVERAGED_MS", "_OVERDUE_MS"},
    "scheduler/planning/policy.py": {"STARVED_MS", "CATCH_UP_MS", "STICKINESS_MS"},
}


def times_in(text):
    """Returns the names of constants of a module whose names end like milliseconds or seconds."""
    assignments = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    targets = [name for node in assignments for t in node.targets for name in ast.walk(t)]
    names = {name.id for name in targets if isinstance(name, ast.Name)}
    return {name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*_(MS|S)", name)}


@pytest.mark.parametrize("folder", ["scheduler", "demo_game"])
def test_no_time_of_one_machine_is_in_the_source(folder):
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := times_in(path.read_text(encoding="utf-8")))
    }
    assert found == {path: names for path, names in OF_PEOPLE.items() if path.startswith(folder)}


def test_times_are_found():
    assert times_in("_A_MS, B_S = 1, 2\nC = 3\ndef f():\n    D_MS = 4\n") == {"_A_MS", "B_S"}
