"""Graph -> files: a folder with ``graph.nnef`` and its ``.dat`` files, or a ``.tgz`` of one."""

from __future__ import annotations

import gzip
import io
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from cml_engine.errors import CmlError, InputError
from cml_engine.io.atomic_write import COMPLETE, PARTIAL, sweep, write_atomically
from cml_engine.io.output_folder import check_new_file, check_new_folder, file_below
from cml_engine.ir.graph import Array, Attrs, Graph
from cml_engine.nnef.expansion.compose import Composed, compose, expression
from cml_engine.nnef.files.names import GRAPH_FILE, QUANT_FILE, tensor_file_name
from cml_engine.nnef.files.tensor_file import ItemType, tensor_bytes
from cml_engine.nnef.text.ast import Argument, Call
from cml_engine.nnef.text.printer import print_document, print_expression


def save(
    graph: Graph,
    path: str | Path,
    *,
    overwrite: bool = False,
    declarations: Mapping[str, str] | None = None,
) -> None:
    """Write a model.

    Parameters
    ----------
    graph : what to write; constants of rank 0 become literals, others files, notes comments.
    path : a folder to make, or an archive to make if the name ends in ``.tgz`` or ``.tar.gz``.
    overwrite : whether something that is there already may be replaced.
    declarations : fragment declarations of operators that are not NNEF's own, besides those that
        the graph brings.
    """
    path = Path(path)
    composed = compose(graph, {**graph.declarations, **(declarations or {})})
    try:
        if path.name.endswith((".tgz", ".tar.gz")):
            _write_archive(composed, path, overwrite)
        else:
            _write_folder(composed, path, overwrite)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def to_text(graph: Graph) -> str:
    """The ``graph.nnef`` of a graph."""
    return _text(compose(graph, graph.declarations))


def model_files(graph: Graph) -> Iterator[tuple[str, bytes]]:
    """Every file's name and bytes of a graph as a folder."""
    yield from _files(compose(graph, graph.declarations))


def _text(composed: Composed) -> str:
    """The graph, and above it what a converter said of it."""
    shown = ["".join(c if c.isprintable() else "?" for c in note) for note in composed.comments]
    return "".join(f"# {note}\n" for note in shown) + print_document(composed.document)


def _files(composed: Composed) -> Iterator[tuple[str, bytes]]:
    """Every file's name and bytes; the graph comes last, so that an archive of a part is none."""
    for label, values in composed.tensors.items():
        name = tensor_file_name(label)
        try:
            yield name, tensor_bytes(values, item=_item(composed, label, values))
        except CmlError as error:
            raise type(error)(f"'{name}': {error.message}") from None
    if composed.quantization:
        yield QUANT_FILE, _quant_text(composed.quantization).encode()
    yield GRAPH_FILE, _text(composed).encode()


def _write_folder(composed: Composed, path: Path, overwrite: bool) -> None:
    """All files are written in a folder of their own first. That becomes ``COMPLETE`` at once,
    which readers prefer, and only then its files are moved to their places: there is a whole model
    to load, the old one or the new one, whenever the process is killed."""
    check_new_folder(path, overwrite)
    made = not path.exists()
    partial = path / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        for name, data in _files(composed):
            write_atomically(partial / name, data)
        if not composed.quantization and (path / QUANT_FILE).exists():
            write_atomically(partial / QUANT_FILE, b"")  # hides the one that is there
        _finish(path)  # what a killed process began
        for name in _names_in(partial):
            file_below(path, name).parent.mkdir(parents=True, exist_ok=True)
        partial.rename(path / COMPLETE)
        _finish(path)
        sweep(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _item(composed: Composed, label: str, values: Array) -> ItemType | None:
    """Stored integers say that they are; everything else is what its array is."""
    if label not in composed.quantized:
        return None
    return ItemType.QUANTIZED_INT if values.dtype.kind == "i" else ItemType.QUANTIZED_UINT


def _names_in(folder: Path) -> list[str]:
    """The files in a folder and below it, the graph last."""
    found = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return sorted(found, key=lambda name: (name == GRAPH_FILE, name))


def _finish(path: Path) -> None:
    """Moves the files of a complete model to their places, the graph last. Other programs, which do
    not know ``COMPLETE``, find no graph until then, instead of a mixture of two models."""
    complete = path / COMPLETE
    file_below(path, f"{COMPLETE}/{GRAPH_FILE}")  # through a link, another's files would be moved
    names = _names_in(complete)
    if GRAPH_FILE in names:
        (path / GRAPH_FILE).unlink(missing_ok=True)
        for name in names:
            (complete / name).replace(file_below(path, name))
        if (path / QUANT_FILE).exists() and not (path / QUANT_FILE).stat().st_size:
            (path / QUANT_FILE).unlink()
    shutil.rmtree(complete, ignore_errors=True)


def _write_archive(composed: Composed, path: Path, overwrite: bool) -> None:
    check_new_file(path, overwrite)
    write_atomically(path, lambda file: _pack(composed, file))


def _pack(composed: Composed, file: BinaryIO) -> None:
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for name, data in _files(composed):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _quant_text(quantization: Mapping[str, Attrs]) -> str:
    return "".join(f'"{name}": {_quant_call(attrs)};\n' for name, attrs in quantization.items())


def _quant_call(attrs: Attrs) -> str:
    given = [Argument(k, expression(v)) for k, v in attrs.items() if k != "op"]
    return print_expression(Call(attrs["op"], tuple(given)))
