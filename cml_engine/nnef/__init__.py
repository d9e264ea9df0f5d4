"""NNEF 1.0.5 models: text and files <-> :class:`cml_engine.graph.Graph`.

``load`` reads a model (lexer -> parser -> build/lower/evaluate -> weights), ``save`` writes one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cml_engine.errors import ModelError
from cml_engine.graph import Graph
from cml_engine.model_source import Bytes, ModelSource, shown
from cml_engine.nnef.expansion.build import build
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.nodes import Infer
from cml_engine.nnef.expansion.signatures import Param, Signature, signature, standard_signatures
from cml_engine.nnef.files.names import QUANT_FILE
from cml_engine.nnef.files.quant import parse_quant
from cml_engine.nnef.files.sources import open_model, read_text
from cml_engine.nnef.files.tensor_file import write_tensor
from cml_engine.nnef.files.weights import load_variables
from cml_engine.nnef.files.writer import save
from cml_engine.nnef.memory import MemoryModel
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse_document
from cml_engine.nnef.warning import NnefWarning

__all__ = [
    "MemoryModel",
    "NnefWarning",
    "Param",
    "Signature",
    "load",
    "load_text",
    "save",
    "signature",
    "standard_signatures",
    "write_tensor",
]


def load(
    model: str | Path | Bytes | ModelSource,
    native: Callable[[str], bool],
    infer: Infer | None = None,
    declarations: Mapping[str, str] | None = None,
) -> Graph:
    """Read a model.

    Parameters
    ----------
    model : a folder with ``graph.nnef``, such a file itself, a ``.tgz`` of such a folder or the
        bytes of one, or a source of such files.
    native : whether the engine has an operator of its own; all others are expanded.
    infer : ``infer(node, facts)`` gives the facts of a node's outputs; with it the graph comes
        with the shapes of all tensors, without it with those of inputs and constants only.
    declarations : what registered operators take and give, as NNEF fragment declarations by name,
        for models that do not declare them.

    Raises
    ------
    ModelError
        for everything that can be wrong with a model, with file, line and column.
    """
    with _collector_paused():
        return _load(open_model(model), Library(native, declarations), infer)


def load_text(text: str, file: str, native: Callable[[str], bool], infer: Infer) -> Graph:
    """A graph without variables from its text; ``file`` is what errors call it."""
    source = SourceText(text, file)
    return build(parse_document(source), source, Library(native), infer).graph


def _load(model: ModelSource, library: Library, infer: Infer | None) -> Graph:
    text = read_text(model, model.graph)
    if text is None:
        raise ModelError(f"'{model.name}' has no {model.graph}: name the folder that has it")
    source = SourceText(text, shown(model, model.graph))
    quant_text = read_text(model, QUANT_FILE)
    try:
        document = parse_document(source)
        quantization = {} if quant_text is None else parse_quant(quant_text)
        built = build(document, source, library, infer)
    except RecursionError:
        raise ModelError(
            f"'{source.file}' is nested too deep: assign inner parts to names"
        ) from None
    weights = load_variables(built.variables, model, quantization)
    constants = {**built.graph.constants, **weights}
    return built.graph.with_(constants=constants, quantization=quantization)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A large model is a million small objects and no garbage: to look for it doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
