"""Writes a graph as a folder with ``graph.nnef`` and ``.dat`` files, or as a ``.tgz`` of one."""

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
from cml_engine.io.atomic_write import COMPLETE, PARTIAL, rename, sweep, write_atomically
from cml_engine.io.output_folder import check_new_file, check_new_folder, file_below
from cml_engine.ir.graph import Array, Attrs, Graph
from cml_engine.nnef.expansion.compose import ComposedDocument, compose, expression
from cml_engine.nnef.files.quant import NOTHING
from cml_engine.nnef.files.tensor_file import (
    GRAPH_FILE,
    QUANT_FILE,
    ItemType,
    tensor_bytes,
    tensor_file_name,
)
from cml_engine.nnef.text.printer import print_document, print_expression
from cml_engine.nnef.text.syntax_tree import Argument, Call


def save(
    graph: Graph,
    path: str | Path,
    *,
    overwrite: bool = False,
    declarations: Mapping[str, str] | None = None,
) -> None:
    """Writes a model.

    Parameters
    ----------
    graph : the graph; constants of rank 0 become literals, others files, and notes become comments.
    path : the folder to create, or the archive if the name ends in ``.tgz`` or ``.tar.gz``.
    overwrite : whether an existing file or folder may be replaced.
    declarations : fragment declarations of operators that neither NNEF nor the graph declares.

    Examples
    --------
    >>> from cml_engine import nnef
    >>> nnef.save(graph, "saved.nnef")
    """
    path = Path(path)
    composed = _composed(graph, declarations)
    try:
        if path.name.lower().endswith((".tgz", ".tar.gz")):
            _write_archive(composed, path, overwrite)
        else:
            _write_folder(composed, path, overwrite)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def to_text(graph: Graph, declarations: Mapping[str, str] | None = None) -> str:
    """Returns the content of ``graph.nnef`` for a graph; ``declarations`` as in :func:`save`."""
    return _text(_composed(graph, declarations))


def model_files(graph: Graph) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the bytes of every file of a graph's folder, ``graph.nnef`` last."""
    yield from _files(compose(graph, graph.declarations))


def _composed(graph: Graph, declarations: Mapping[str, str] | None) -> ComposedDocument:
    return compose(graph, {**(declarations or {}), **graph.declarations})


def _text(composed: ComposedDocument) -> str:
    """Returns the content of ``graph.nnef``, with the converter's notes as comments at its top."""
    printable = ["".join(c if c.isprintable() else "?" for c in note) for note in composed.comments]
    return "".join(f"# {note}\n" for note in printable) + print_document(composed.document)


def _files(composed: ComposedDocument) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the bytes of every file of a model.

    ``graph.nnef`` is last, so that a partial archive is invalid.
    """
    for label, values in composed.tensors.items():
        name = tensor_file_name(label)
        try:
            yield name, tensor_bytes(values, item=_item(composed, label, values))
        except CmlError as error:
            raise type(error)(f"'{name}': {error.message}") from None
    if composed.quantization:
        yield QUANT_FILE, _quant_text(composed.quantization).encode()
    yield GRAPH_FILE, _text(composed).encode()


def _write_folder(composed: ComposedDocument, path: Path, overwrite: bool) -> None:
    """Writes a model's folder; if the process is killed, readers find a whole model, old or new.

    All files are first written to a folder of their own. It is then renamed to ``COMPLETE``,
    which readers prefer, and its files are moved to their places.
    """
    check_new_folder(path, overwrite)
    is_new = not path.exists()
    partial = path / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        for name, data in _files(composed):
            write_atomically(partial / name, data)
        if not composed.quantization and (path / QUANT_FILE).exists():
            write_atomically(partial / QUANT_FILE, NOTHING.encode())  # hides an existing one
        _finish(path)  # completes the save of a killed process
        for name in _names_in(partial):
            file_below(path, name).parent.mkdir(parents=True, exist_ok=True)
        rename(partial, path / COMPLETE)
        _finish(path)
        sweep(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _item(composed: ComposedDocument, label: str, values: Array) -> ItemType | None:
    """Returns the item type of a tensor of stored integers, None for other tensors.

    With None the array's type decides.
    """
    if label not in composed.quantized:
        return None
    return ItemType.QUANTIZED_INT if values.dtype.kind == "i" else ItemType.QUANTIZED_UINT


def _names_in(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder and below, sorted, ``graph.nnef`` last."""
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return sorted(names, key=lambda name: (name == GRAPH_FILE, name))


def _finish(path: Path) -> None:
    """Moves the files in the subfolder ``COMPLETE`` to their places, and deletes the subfolder.

    The graph is moved last. Programs that do not know ``COMPLETE`` find no graph during the move,
    instead of a mixture of two models.
    """
    complete = path / COMPLETE
    file_below(path, f"{COMPLETE}/{GRAPH_FILE}")  # refuses links that lead out of the folder
    names = _names_in(complete)
    if GRAPH_FILE in names:
        (path / GRAPH_FILE).unlink(missing_ok=True)
        for name in names:
            rename(complete / name, file_below(path, name))
        quant = path / QUANT_FILE
        if quant.exists() and quant.read_bytes() == NOTHING.encode():
            quant.unlink()
    shutil.rmtree(complete, ignore_errors=True)


def _write_archive(composed: ComposedDocument, path: Path, overwrite: bool) -> None:
    check_new_file(path, overwrite)
    write_atomically(path, lambda file: _pack(composed, file))


def _pack(composed: ComposedDocument, file: BinaryIO) -> None:
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
    arguments = [Argument(k, expression(v)) for k, v in attrs.items() if k != "op"]
    return print_expression(Call(attrs["op"], tuple(arguments)))
