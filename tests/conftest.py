"""Rules for the whole suite: tests declare what they need, and are skipped without it.

A test needs a GPU adapter if it is marked ``gpu`` or takes the ``gpu`` fixture. Without an adapter
it still appears, skipped and counted, with the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pytest

from tests.fixtures.memory import resident_mib

if TYPE_CHECKING:
    from cml_engine import Gpu

TESTS = Path(__file__).resolve().parent


#: pipelines that a device keeps from one test to the next, some 2 MB each
_MOST_PIPELINES = 40
#: MiB that a process may grow by before unused memory is released
_MOST_GROWTH = 64

# drivers and naga take code that Vulkan forbids, so Slang checks each kernel that it compiles
os.environ.setdefault("SLANG_RUN_SPIRV_VALIDATION", "1")

if "PYTEST_XDIST_WORKER" in os.environ:
    # each worker has one core, so a second compiler or NumPy threads would only compete
    os.environ.setdefault("CML_COMPILERS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# The suite's cases are the same in every run; `python -m tests.proofs.fuzz` draws others. Without
# hypothesis the tests that need it say so themselves.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("suite", derandomize=True)
    settings.load_profile("suite")


#: the largest factor by which first guesses of costs are wrong, if the suite runs as on a machine
#: unlike the one on which they were measured (python tasks.py unlike)
WRONG_BY = float(os.environ.get("CML_TEST_WRONG_GUESSES", "1"))


@pytest.fixture(autouse=True)
def _wrong_guesses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplies the first guess of each cost key by a random factor up to :data:`WRONG_BY`."""
    if WRONG_BY == 1.0 or request.node.get_closest_marker("shipped_guesses"):
        return
    from cml_engine.scheduler.planning.cost_model import FirstGuess

    factor_of = FirstGuess._factor

    def wrong_factor(guess: FirstGuess, key: str) -> float:
        share = zlib.crc32(key.encode()) / 2**32
        return factor_of(guess, key) * WRONG_BY ** (2 * share - 1)

    monkeypatch.setattr(FirstGuess, "_factor", wrong_factor)


@functools.cache
def open_gpu() -> Gpu | str:
    """Returns the suite's only device, or the reason why there is none."""
    if importlib.util.find_spec("wgpu") is None:
        return "wgpu is not installed"
    from cml_engine import DeviceError, Gpu

    try:
        return Gpu()
    except DeviceError as error:
        return f"no GPU adapter: {error}"


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The device that GPU tests share, so that pipelines built by one test serve the next."""
    found = open_gpu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Gpu | str:
    """The backends on which a test runs, one after the other: "cpu", and the suite's device."""
    return request.getfixturevalue("gpu") if request.param == "gpu" else "cpu"


@pytest.fixture
def image(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A random input of ``conv_net``."""
    return rng.standard_normal((1, 8, 24, 24), np.float32)


@pytest.fixture
def host(gpu: Gpu) -> Any:
    """A frame loop on the suite's device."""
    from tests.fixtures.frames.host import Host  # needs wgpu, which may be missing here

    return Host(gpu, budget_ms=5.0)


@pytest.fixture
def set_limits(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that changes limits of the suite's device for one test."""

    def change(**limits: Any) -> None:
        monkeypatch.setattr(gpu, "limits", replace(gpu.limits, **limits))

    return change


@pytest.fixture
def timed_gpu(gpu: Gpu) -> Gpu:
    """The suite's device; skips the test if it has no timestamps."""
    if not gpu.has_timestamps:
        pytest.skip("no timestamp queries")
    return gpu


def seed_of(node_id: str) -> int:
    """Returns a test's seed, which depends only on its node id."""
    return zlib.crc32(node_id.encode())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A random generator with the test's own seed."""
    return np.random.default_rng(seed_of(request.node.nodeid))


class CommandOutput(NamedTuple):
    """The text that a command printed on standard output and on standard error."""

    out: str
    err: str


@pytest.fixture
def run_cml(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., CommandOutput]:
    """A function that runs a command line and returns what it printed.

    The first word may be the whole line: ``run_cml(f"info {model} --json")``. It asserts that the
    exit code is ``ends``. A busy machine, where a command takes long, prints no progress.
    """
    from cml_engine.tools.cli import main, terminal

    monkeypatch.setattr(terminal, "_SILENT_S", 60)

    folders = [str(TESTS.parent), str(tmp_path_factory.getbasetemp())]

    def words_of(line: str) -> list[str]:
        for folder in folders:  # which may have spaces in their names
            line = line.replace(folder, folder.replace(" ", "\0"))
        return [word.replace("\0", " ") for word in line.split()]

    def run(line: str, *words: object, ends: int = 0) -> CommandOutput:
        capsys.readouterr()
        try:
            code = main([*words_of(line), *map(str, words)])
        except SystemExit as ended:  # for unknown options and --help
            code = int(ended.code or 0)
        printed = CommandOutput(*capsys.readouterr())
        assert code == ends, printed.err
        assert "Traceback" not in printed.err and "internal error" not in printed.err
        return printed

    return run


@pytest.fixture
def refused(run_cml: Callable[..., CommandOutput]) -> Callable[..., str]:
    """A function that runs a command line that is refused, and returns the message."""
    return lambda *words: run_cml(*words, ends=2).err


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets empty folders for tuning tables and learned costs, so that no test depends on this
    machine's.

    The engine's rules and shipped tables alone choose the kernels.
    """
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CML_TUNING_DIR", "CML_DATA_DIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp("tables")))
        yield


@pytest.fixture
def own_operators() -> Iterator[None]:
    """Loads the engine's operators; after the test, unregisters all that the test has
    registered."""
    from cml_engine.ops import unregister
    from cml_engine.ops.declaration.registry import load_families, registered

    load_families()
    before = set(registered())
    yield
    for name in set(registered()) - before:
        unregister(name)


class _Memory:
    """Drops cached pipelines and collects garbage when the process has grown too much.

    The pipelines of a whole suite would take 5 GB.
    """

    def __init__(self) -> None:
        self._least = resident_mib()

    def tidy(self) -> None:
        found = open_gpu() if open_gpu.cache_info().currsize else ""
        built = 0 if isinstance(found, str) else len(found._pipelines)
        now = resident_mib()
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
        self._least = resident_mib()


_memory = _Memory()


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    yield
    _memory.tidy()


@pytest.fixture(scope="session", autouse=True)
def _objects_stay_frozen() -> Iterator[None]:
    """Fails the last test if one thawed what :func:`pytest_collection_finish` froze.

    Counting the frozen objects takes 20 ms, so it is not done after each test.
    """
    yield
    assert gc.get_freeze_count(), "a test called gc.unfreeze()"


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seeds the global generators of ``random`` and NumPy with the test's own seed."""
    seed = seed_of(request.node.nodeid)
    random.seed(seed)
    np.random.seed(seed)
    yield


class _SkippedFile(pytest.Module):
    """A test file that is skipped without an import, because wgpu is missing."""

    def collect(self) -> Iterable[pytest.Item]:
        tests = re.findall(r"^def (test_\w+)", self.path.read_text(encoding="utf-8"), re.MULTILINE)
        pytest.skip(f"{open_gpu()}: {len(tests)} tests: {', '.join(tests)}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Returns True, which skips a file, if all its tests are marked ``long`` and no long tests are
    run.

    Returns None for all other files. Listing the cases of long tests takes seconds in every
    process.
    """
    if config.option.markexpr != "not long" or collection_path.suffix != ".py":
        return None
    return _marks_all(collection_path, "long") or None


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Returns a :class:`_SkippedFile` for a file of GPU tests if wgpu is not installed, else
    None."""
    if importlib.util.find_spec("wgpu") is None and _marks_all(module_path, "gpu"):
        return _SkippedFile.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


def pytest_collection_finish() -> None:
    """Collects garbage, then exempts all present objects (modules, nine thousand tests) from
    collection.

    Later collections, including those that tests request, do not traverse them.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        found = open_gpu()
        if isinstance(found, str):
            pytest.skip(found)


#: the tests whose process crashed and that run again
_crashed: set[str] = set()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Runs a test of the GPU whose process crashed once more, in a new process.

    llvmpipe of Mesa 22.3 crashed in a thread of its own in two of nine whole runs, in different
    tests of textures. The summary names the test; a second crash is a failure.
    """
    file = TESTS.parent / crashitem.partition("::")[0]
    if _marks_all(file, "gpu") and crashitem not in _crashed:
        _crashed.add(crashitem)
        report.outcome = cast(Any, "crashed")
        sched.mark_test_pending(crashitem)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the skipped tests by file and reason, with their number and their names.

    A parametrized test is named once. A suite that skips half of its tests thereby shows it.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        file, _, name = report.nodeid.partition("::")
        groups.setdefault((file, _reason(report)), []).append(name.split("[")[0])
    for name in sorted(_crashed):
        terminalreporter.write_line(f"crashed once and ran again: {name}")
    for (file, reason), names in sorted(groups.items()):
        shown = ", ".join(name for name in dict.fromkeys(names) if name)
        terminalreporter.write_line(f"skipped {len(names):4} in {file}: {reason}: {shown}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    said = report.longrepr
    text = str(said[2]) if isinstance(said, tuple | list) else str(said)
    return text.removeprefix("Skipped: ").splitlines()[0]


def _marks_all(file: Path, mark: str) -> bool:
    """Returns True if a file's ``pytestmark`` gives a mark to all its tests."""
    text = file.read_text(encoding="utf-8")
    return re.search(rf"^pytestmark = .*\bmark\.{mark}\b", text, re.M) is not None
