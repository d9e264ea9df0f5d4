"""Rules for the whole suite: folders say what a test needs, and what is missing is skipped by name.

A test under ``tests/gpu`` needs a GPU adapter, one under ``tests/oracles`` another implementation.
Where the need is not met the test still appears, skipped and counted, with the reason.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from cml_engine import Gpu

TESTS = Path(__file__).resolve().parent


#: pipelines that a device keeps from one test to the next, some 2 MB each
_MOST_PIPELINES = 40
#: MB that a process may grow by until it is looked for what can be let go
_MOST_GROWTH = 64

if "PYTEST_XDIST_WORKER" in os.environ:
    # each worker has a core: there is none for a second compiler or for threads of NumPy's
    os.environ.setdefault("CML_COMPILERS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# A suite says the same of the same code; `python -m tests.fuzz` is what looks further. Without
# hypothesis the tests that need it say so themselves.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("suite", derandomize=True)
    settings.load_profile("suite")


@functools.cache
def open_gpu() -> Gpu | str:
    """The suite's one device, or why there is none."""
    if importlib.util.find_spec("wgpu") is None:
        return "wgpu is not installed"
    from cml_engine import DeviceError, Gpu

    try:
        return Gpu()
    except DeviceError as error:
        return f"no GPU adapter: {error}"


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The device that GPU tests share: pipelines built by one test serve the next."""
    found = open_gpu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def seed_of(node_id: str) -> int:
    """A test's own seed: the same whatever else runs, and in whatever order."""
    return zlib.crc32(node_id.encode())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test's own."""
    return np.random.default_rng(seed_of(request.node.nodeid))


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are chosen by the engine's rules and the tables that it ships, whatever was tuned on
    the machine that the tests run on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CML_TUNING_DIR", str(tmp_path_factory.mktemp("tuning")))
        yield


@pytest.fixture
def own_operators() -> Iterator[None]:
    """What a test registers is gone after it; the engine's own operators are there before."""
    from cml_engine import unregister
    from cml_engine.ops import load_families, registered

    load_families()
    before = set(registered())
    yield
    for name in set(registered()) - before:
        unregister(name)


class _Memory:
    """What tests no longer use is let go: a suite's worth of pipelines is 5 GB."""

    def __init__(self) -> None:
        self._least = _resident_mb()

    def tidy(self) -> None:
        found = open_gpu() if open_gpu.cache_info().currsize else ""
        built = 0 if isinstance(found, str) else len(found._pipelines)
        now = _resident_mb()
        self._least = min(self._least, now)
        if built <= _MOST_PIPELINES and now <= self._least + _MOST_GROWTH:
            return
        if not isinstance(found, str):
            found._pipelines = type(found._pipelines)()
        gc.collect()
        if not isinstance(found, str):
            found.wait()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        self._least = _resident_mb()


def _resident_mb() -> float:
    """What this process has in memory; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


_memory = _Memory()


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    yield
    _memory.tidy()


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Global generators are seeded too, for code that uses them."""
    seed = seed_of(request.node.nodeid)
    random.seed(seed)
    np.random.seed(seed)
    yield


class _SkippedTest(pytest.Item):
    """A test whose file cannot be imported here: its name and the reason are all there is."""

    def runtest(self) -> None:
        reason = open_gpu()
        pytest.skip(reason if isinstance(reason, str) else "cannot be imported")


class _NamesOnly(pytest.Module):
    """A test file read but not imported: it may import wgpu, which is not here."""

    def collect(self) -> Iterable[pytest.Item]:
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield _SkippedTest.from_parent(self, name=node.name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is of the long proof as a whole is not even imported where that is left out: its
    cases take seconds to list, in every process."""
    if config.option.markexpr != "not long" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return "\npytestmark = pytest.mark.long\n" in text or None


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Files under tests/gpu are not imported where wgpu is not installed."""
    if _folder(module_path) == "gpu" and importlib.util.find_spec("wgpu") is None:
        return _NamesOnly.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = _folder(item.path)
        if folder == "oracles":
            item.add_marker(pytest.mark.oracle)
        if folder == "gpu" or "gpu" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


def pytest_collection_finish() -> None:
    """What stays until the end (modules, nine thousand tests) is not looked through by every
    collection that comes, nor by those that tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        found = open_gpu()
        if isinstance(found, str):
            pytest.skip(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests counted by file and reason, and named (a test of many cases once), so that a
    suite which skips half of itself shows it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        file, _, name = report.nodeid.partition("::")
        groups.setdefault((file, _reason(report)), []).append(name.split("[")[0])
    for (file, reason), names in sorted(groups.items()):
        shown = ", ".join(name for name in dict.fromkeys(names) if name)
        terminalreporter.write_line(f"skipped {len(names):4} in {file}: {reason}: {shown}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    said = report.longrepr
    text = str(said[2]) if isinstance(said, tuple | list) else str(said)
    return text.removeprefix("Skipped: ").splitlines()[0]


def _folder(path: Path) -> str:
    """The folder right under ``tests`` that holds the file."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 else ""
