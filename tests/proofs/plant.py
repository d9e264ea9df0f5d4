"""Plants faults into a copy of the tree, one at a time: the tests that should notice must fail.

    python -m tests.proofs.plant                 # all faults; exit code 1 if one survives
    python -m tests.proofs.plant pool readback   # those with one of these words in their names
    python -m tests.proofs.plant --jobs 2        # as many copies at a time
    python -m tests.proofs.plant --tests tests/sessions   # these for every fault

A fault that makes the tests fail to start, or that the tests notice without it too, proves nothing
and counts as surviving.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

from tests.fixtures.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
#: seconds; a test that takes longer does not count as noticing the fault
SECONDS = 180
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "dist", "shared")
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:cacheprovider")
#: the tokens of a program, in every language of the project
_TOKEN = re.compile(r"\w+(?:\.\d+)*|[<>=!+\-*/|&%]=|<<|>>|\*\*|->|&&|\|\||\S")
_HLSL_FUNCTION = re.compile(r"^[\w<>,\[\]: ]*?\b(\w+)\s*\([^;{}]*\)[^;{}()]*\{", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class FaultOutcome:
    """The result of a planted fault.

    ``test`` is the first test that failed; ``why`` is the reason why the fault counts as surviving.
    """

    fault: Fault
    seconds: float
    test: str = ""
    why: str = ""


def places(fault: Fault, root: Path = ROOT) -> list[tuple[int, int]]:
    """Returns the start and end of every occurrence of the fault's tokens in its file or function.

    A fault that fits has exactly one.
    """
    text = (root / fault.file).read_text(encoding="utf-8")
    function = fault.place.partition(":")[2]
    spans = [(0, len(text))]
    if function:
        known = _in_python(text) if fault.file.endswith(".py") else _in_hlsl(text)
        spans = [(start, end) for name, start, end in known if name == function]
    expected = _TOKEN.findall(fault.old)
    found = []
    for start, end in spans:
        tokens = list(_TOKEN.finditer(text, start, end))
        for i in range(len(tokens) - len(expected) + 1):
            if all(t[0] == w for t, w in zip(tokens[i:], expected, strict=False)):
                found.append((tokens[i].start(), tokens[i + len(expected) - 1].end()))
    return found


def _in_python(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the qualified name, the start and the end of every function and class of a Python
    text."""
    lines = [0, *accumulate(map(len, text.splitlines(keepends=True)))]

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                yield name, lines[child.lineno - 1], lines[child.end_lineno or -1]
                yield from below(child, f"{name}.")
            else:
                yield from below(child, prefix)

    return below(ast.parse(text), "")


def _in_hlsl(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the name, the start and the end of every function of an HLSL text."""
    for found in _HLSL_FUNCTION.finditer(text):
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield found[1], found.start(), end


@contextmanager
def planted(fault: Fault, root: Path) -> Iterator[None]:
    """A context manager that replaces the fault's tokens in its file and restores the file at
    the end."""
    file = root / fault.file
    before, stamp = file.read_text(encoding="utf-8"), file.stat().st_mtime
    ((start, end),) = places(fault, root)
    # Python finds stale .pyc files by size and time, so every text gets its own time
    try:
        file.write_text(before[:start] + fault.new + before[end:], encoding="utf-8")
        os.utime(file, (stamp + 7, stamp + 7))
        yield
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, (stamp, stamp))


def run(tests: Sequence[str], root: Path) -> tuple[int, list[str], str]:
    """Runs pytest in a tree; returns its exit code, the failed tests and the end of its output.

    The exit code is -1 after ``SECONDS``.
    """
    try:
        done = subprocess.run(
            [*_PYTEST, *tests], cwd=root, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return -1, [], f"not done after {SECONDS} s"
    return done.returncode, _FAILED.findall(done.stdout), (done.stdout + done.stderr)[-1500:]


def judge(fault: Fault, root: Path, tests: Sequence[str] = ()) -> FaultOutcome:
    """Plants the fault, runs its tests, and returns the outcome: the failed test, or why it
    survives.

    ``tests`` replaces the tests that the fault names.
    """
    start = time.monotonic()
    if (count := len(places(fault, root))) != 1:
        return FaultOutcome(fault, 0.0, why=f"its tokens stand {count} times in {fault.place}")
    with planted(fault, root):
        code, failed, said = run(tests or shlex.split(fault.tests), root)
    spent = time.monotonic() - start
    if code == 1 and failed:
        return FaultOutcome(fault, spent, failed[0])
    why = "no test fails" if code == 0 else f"the tests do not run (exit code {code}):\n{said}"
    return FaultOutcome(fault, spent, why=why)


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """A context manager that gives a queue of the paths of ``count`` copies of the tree."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="cml-plant-") as folder:
        for i in range(count):
            # links, or the package would import copies without the fault
            shutil.copytree(ROOT, Path(folder, str(i)), ignore=_LEFT_OUT, symlinks=True)
            free.put(Path(folder, str(i)))
        yield free


def campaign(faults: Sequence[Fault], jobs: int, tests: Sequence[str] = ()) -> list[FaultOutcome]:
    """Plants each fault, prints a line for it, and returns the outcomes in the order of the faults.

    ``jobs`` faults are judged at a time. A fault counts as surviving if the test that failed
    also fails without the fault.
    """
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def one(fault: Fault) -> FaultOutcome:
            tree = free.get()
            try:
                outcome = judge(fault, tree, tests)
            finally:
                free.put(tree)
            print(_line(outcome), flush=True)
            return outcome

        outcomes = list(pool.map(one, faults))
        tree = free.get()
        failing = sorted({o.test for o in outcomes if o.test})
        _, wrong, _ = run([*failing, "--maxfail=1000"], tree) if failing else (0, [], "")
    return [
        FaultOutcome(o.fault, o.seconds, why=f"{o.test} fails without it too")
        if o.test in wrong
        else o
        for o in outcomes
    ]


def _line(o: FaultOutcome) -> str:
    return f"{o.seconds:5.1f} s  {'noticed ' if o.test else 'SURVIVES'}  {o.fault.name}: " + (
        o.test or o.why
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only faults with one of these in their names")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree at a time")
    parser.add_argument("--tests", default="", help="pytest's arguments, instead of each fault's")
    a = parser.parse_args(arguments)
    faults = [f for f in FAULTS if not a.words or any(w in f.name for w in a.words)]
    outcomes = campaign(faults, a.jobs, shlex.split(a.tests))
    survivors = [o for o in outcomes if not o.test]
    print(f"{len(faults) - len(survivors)} of {len(faults)} faults noticed")
    for o in survivors:
        print(f"SURVIVES  {o.fault.name} ({o.fault.place}): {o.why}")
    return int(bool(survivors) or not faults)


if __name__ == "__main__":
    sys.exit(main())
