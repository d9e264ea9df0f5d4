"""Damaged files of models: ``python -m tests.fuzz --bytes --minutes 5 --seed 7``.

Each case is a small model's files with one of them damaged: an ``.onnx`` file, the files of an
NNEF folder, a ``.tgz`` (its bytes, or those of the archive inside), an ncnn ``.param`` with its
``.bin``. First come truncations at every 997th byte, then random damage: bytes flipped, removed,
doubled and put in, lengths and numbers that are too large, wire types of protobuf that are wrong.

Loading gives a graph or a :class:`CmlError` with a message, in bounded time and memory. Anything
else is a failure: its files are written into a folder, and exit code 1 says that there is one.
"""

from __future__ import annotations

import argparse
import gzip
import signal
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine.convert.ncnn import convert_ncnn
from cml_engine.nnef.files.writer import save
from cml_engine.passes.infer import infer_node
from tests import ncnn_models
from tests.fuzz_graphs import random_case

Files = Mapping[str, bytes]
Load = Callable[[Path], object]
#: more processor time and memory than loading any of these models can need
SECONDS, MEGABYTES = 10.0, 256
#: where files are cut
STEP = 997
#: graphs that are written in each format, and their size
GRAPHS, _NODES = 6, 12
_WORDS = (b"0", b"-1", b"9999999999", b"2147483648", b"1e999", b"[", b"]", b"(", b";", b"\0", b"\n")


class TooLong(BaseException):
    """A case is not done in its time. No handler of errors catches it."""


@dataclass(frozen=True)
class Model:
    """A model's files, and what loads the folder that they are in."""

    format: str
    files: Files
    load: Load


@dataclass(frozen=True)
class Damaged:
    """A model with one file of other bytes."""

    model: Model
    file: str
    data: bytes

    @property
    def files(self) -> Files:
        return {**self.model.files, self.file: self.data}


# ---------------------------------------------------------------- models


def models(graphs: int = GRAPHS) -> list[Model]:
    """Random graphs as NNEF, as an archive and as ONNX; a network of ncnn, and one as exporters
    write them where the package ``onnx`` is installed."""
    found = [_ncnn()]
    with tempfile.TemporaryDirectory(prefix="cml-bytes-") as folder:
        for number in range(graphs):
            graph = random_case(np.random.default_rng([0, number]), _NODES).graph
            found += _of_graph(graph, Path(folder, str(number)))
    if find_spec("onnx"):
        from tests.onnx_models import exported_cnn

        made = exported_cnn(np.random.default_rng(1)).SerializeToString()
        shapes = {"image": (1, 3, 8, 8)}
        found.append(
            Model("onnx", {"m.onnx": made}, lambda at: cml.load(at / "m.onnx", shapes=shapes))
        )
    return found


def _of_graph(graph: cml.Graph, folder: Path) -> Iterator[Model]:
    folder.mkdir()
    save(graph, folder / "net")
    files = {p.relative_to(folder / "net").as_posix(): p for p in (folder / "net").rglob("*")}
    yield Model("nnef", {n: p.read_bytes() for n, p in files.items() if p.is_file()}, cml.load)
    save(graph, folder / "net.tgz")
    packed = (folder / "net.tgz").read_bytes()
    yield Model("tgz", {"m.tgz": packed}, lambda at: cml.load(at / "m.tgz"))
    yield Model("tar", {"m.tar": gzip.decompress(packed)}, _load_tar)
    try:
        cml.save(graph, folder / "net.onnx")
    except cml.CmlError:  # not everything has a form there
        return
    whole = (folder / "net.onnx").read_bytes()
    yield Model("onnx", {"m.onnx": whole}, lambda at: cml.load(at / "m.onnx"))


def _load_tar(folder: Path) -> object:
    """Packed here: the damage is not found by the checksum of the compressed bytes."""
    return cml.load(gzip.compress((folder / "m.tar").read_bytes(), 1))


def _ncnn() -> Model:
    lines = [
        ncnn_models.input_line("x", (3, 8, 8)),
        "Convolution c 1 1 x c 0=4 1=3 4=1 5=1 6=108",
        "Split s 1 2 c a b",
        "Pooling p 1 1 a q 0=0 1=2 2=2",
        "Interp u 1 1 q r 0=1 1=2.0 2=2.0",
        "BinaryOp d 2 1 r b e 0=0",
        "InnerProduct f 1 1 e y 0=5 1=1 2=1280",
    ]
    weights = ncnn_models.weight_bytes("h108 r4 f1280 r5", np.random.default_rng(2))
    files = {"m.param": ncnn_models.param_text(lines).encode(), "m.bin": weights}
    return Model("ncnn", files, lambda at: convert_ncnn(at / "m.param", infer_node))


# ---------------------------------------------------------------- damage


def cuts(found: list[Model]) -> list[Damaged]:
    """Every file of every model, cut at every :data:`STEP`-th byte."""
    return [
        Damaged(model, name, data[:end])
        for model in found
        for name, data in model.files.items()
        for end in range(0, len(data), STEP)
    ]


def drawn(found: list[Model], seed: int, number: int) -> Damaged:
    """A random case by its number: the same in every run."""
    rng = np.random.default_rng([seed, number])
    formats = sorted({model.format for model in found})
    format = formats[rng.integers(len(formats))]
    fitting = [model for model in found if model.format == format]
    model = fitting[rng.integers(len(fitting))]
    name = sorted(model.files)[rng.integers(len(model.files))]
    data = bytearray(model.files[name])
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        _DAMAGES[rng.integers(len(_DAMAGES))](data, int(rng.integers(len(data) + 1)), rng)
    return Damaged(model, name, bytes(data))


def _flip(data: bytearray, at: int, rng: np.random.Generator) -> None:
    if at < len(data):
        data[at] ^= 1 << int(rng.integers(8))


def _replace(data: bytearray, at: int, rng: np.random.Generator) -> None:
    data[at : at + 1] = rng.bytes(1)


def _insert(data: bytearray, at: int, rng: np.random.Generator) -> None:
    data[at:at] = rng.bytes(int(rng.integers(1, 5)))


def _remove(data: bytearray, at: int, rng: np.random.Generator) -> None:
    del data[at : at + int(rng.integers(1, 9))]


def _cut(data: bytearray, at: int, rng: np.random.Generator) -> None:
    del data[at:]


def _splice(data: bytearray, at: int, rng: np.random.Generator) -> None:
    """A piece of the file once more, elsewhere."""
    start = int(rng.integers(len(data) + 1))
    data[at:at] = data[start : start + int(rng.integers(1, 200))]


def _length(data: bytearray, at: int, rng: np.random.Generator) -> None:
    """A 32-bit word, or a varint of protobuf, that says much or nothing."""
    value = int(rng.choice((0, 1, 127, 65535, 2**31 - 1, 2**31, 2**32 - 1)))
    if rng.random() < 0.5:
        data[at // 4 * 4 : at // 4 * 4 + 4] = value.to_bytes(4, "little")
        return
    groups = [value >> 7 * i & 127 for i in range(max(1, (value.bit_length() + 6) // 7))]
    data[at : at + 1] = bytes(group | 128 for group in groups[:-1]) + bytes(groups[-1:])


def _wire(data: bytearray, at: int, rng: np.random.Generator) -> None:
    """Another of protobuf's wire types, where the byte is a key."""
    if at < len(data):
        data[at] = data[at] & 0xF8 | int(rng.integers(8))


def _word(data: bytearray, at: int, rng: np.random.Generator) -> None:
    """What text stumbles over."""
    data[at : at + int(rng.integers(3))] = _WORDS[rng.integers(len(_WORDS))]


_DAMAGES = (_flip, _replace, _insert, _remove, _cut, _splice, _length, _wire, _word)


# ---------------------------------------------------------------- runs


def outcome(case: Damaged, folder: Path) -> str:
    """How loading ended: "loads", the name of an error of ours, or "FAILS: …"."""
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.process_time()
    try:
        with _limited():
            said = _ends(case.model.load, folder)
    except TooLong:
        return f"FAILS: not done after {SECONDS:g} s"
    finally:
        for name in case.files:
            (folder / name).unlink()
    used = (tracemalloc.get_traced_memory()[1] - before) / 2**20
    if used > MEGABYTES:
        return f"FAILS: takes {used:.0f} MiB, more than {MEGABYTES}"
    took = time.process_time() - start
    return said if took < SECONDS else f"FAILS: takes {took:.1f} s, more than {SECONDS:g}"


def _ends(load: Load, folder: Path) -> str:
    try:
        load(folder)
    except cml.CmlError as error:
        return type(error).__name__ if str(error) else "FAILS: an error without a message"
    except Exception as error:
        return f"FAILS: {type(error).__name__}: {error}"
    return "loads"


@contextmanager
def _limited() -> Iterator[None]:
    """:class:`TooLong` after :data:`SECONDS` of processor time, where the system has such a clock:
    a machine that is busy does not count."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def traced() -> Iterator[None]:
    """Memory is counted, as :func:`outcome` wants it."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def campaign(a: argparse.Namespace) -> int:
    """The cuts, then random damage until the time is up; one line for each failure."""
    end, found = time.monotonic() + 60 * a.minutes, models()
    first, number, counts = cuts(found), a.first, Counter[str]()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cml-bytes-") as folder, traced():
        while number - a.first < a.cases if a.cases else time.monotonic() < end:
            rest = number - len(first)
            case = first[number] if rest < 0 else drawn(found, a.seed, rest)
            said = outcome(case, Path(folder))
            counts[said.partition(":")[0]] += 1
            if said.startswith("FAILS"):
                failed += 1
                kept = a.keep / f"bytes-{a.seed}-{number}"
                _write(case, said, kept)
                print(
                    f"case {number}, {case.model.format}, {case.file}: {said}; {kept}", flush=True
                )
            number += 1
    ended = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    print(f"{number - a.first} cases of {len(found)} models: {ended}")
    return int(failed > 0)


def _write(case: Damaged, said: str, folder: Path) -> None:
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "problem.txt").write_text(f"{said}\n", encoding="utf-8")
