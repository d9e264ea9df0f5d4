"""Reads NNEF 1.0.5 models into a :class:`cml_engine.ir.graph.Graph`, and writes graphs as NNEF.

``load`` reads a model (lexer -> parser -> build/lower/evaluate -> weights), ``save`` writes one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from cml_engine.errors import ModelError, depth_checked
from cml_engine.io.load_limits import load_budget
from cml_engine.io.model_source import Bytes, ModelSource, shown
from cml_engine.ir.construction import Infer
from cml_engine.ir.graph import Array, Graph, Shapes
from cml_engine.nnef.expansion.document_builder import (
    DocumentBuilder,
    DocumentGraph,
    choose_outputs,
    prepare,
)
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.signatures import Param, Signature, signature, standard_signatures
from cml_engine.nnef.files.quant import parse_quant
from cml_engine.nnef.files.safetensors import Weights
from cml_engine.nnef.files.sources import MemoryModel, open_model, read_text
from cml_engine.nnef.files.tensor_file import QUANT_FILE, write_tensor
from cml_engine.nnef.files.weights import (
    RandomWeights,
    RetainedVariable,
    finder,
    load_variables,
    retained_values_of,
)
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import parse_document
from cml_engine.nnef.warning import NnefWarning

__all__ = [
    "MemoryModel",
    "NnefWarning",
    "Param",
    "Signature",
    "Weights",
    "signature",
    "standard_signatures",
    "write_tensor",
]


class NnefModel:
    """A model's text and weights in memory; makes graphs for any input shapes.

    Parameters
    ----------
    model : a folder with ``graph.nnef``, such a file itself, a ``.tgz`` of such a folder or the
        bytes of one, or a source of such files.
    native : returns True for the operators that the engine implements; all others are expanded.
    infer : ``infer(node, facts)`` returns the facts of a node's outputs. With it a graph has the
        shapes of all tensors, without it those of inputs and constants only.
    declarations : the signatures of registered operators, as NNEF fragment declarations by name,
        for models that do not declare them.
    weights : the values of all variables, instead of tensor files.
    random : makes the values that are missing.
    outputs : the tensors to compute; what they do not need is not evaluated. Without them the
        graph's outputs are computed.

    Raises
    ------
    ModelError
        if anything in the model is invalid, with file, line and column.

    Examples
    --------
    >>> model = NnefModel("net.nnef", native=lambda op: True)
    >>> model.graph().outputs
    ('out',)
    """

    def __init__(
        self,
        model: str | Path | Bytes | ModelSource,
        native: Callable[[str], bool],
        infer: Infer | None = None,
        declarations: Mapping[str, str] | None = None,
        weights: Weights | None = None,
        random: RandomWeights | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        files = open_model(model)
        text = read_text(files, files.graph)
        if text is None:
            raise ModelError(f"'{files.name}' has no {files.graph}: name the folder that has it")
        self._infer, self._library = infer, Library(native, declarations)
        self._source = SourceText(text, shown(files, files.graph))
        self._files: ModelSource | None = files
        self._stored, self._random = weights, random
        quant = read_text(files, QUANT_FILE)
        with _reading(self._source.file):
            self._document = parse_document(self._source)
            self._quantization = {} if quant is None else parse_quant(quant)
            prepare(self._document, self._source, self._library)
            self._is_whole = not outputs
            if outputs:
                self._document = choose_outputs(self._document, outputs, self._source.file)
        self._retained: dict[str, RetainedVariable] = {}

    def graph(self, shapes: Shapes = MappingProxyType({})) -> Graph:
        """Returns the graph for the given input shapes, by input name.

        Inputs that ``shapes`` lacks have the shapes of the text. The weights' files are read at
        the first call only.
        """
        with _reading(self._source.file):
            document, source, library = self._document, self._source, self._library
            built = DocumentBuilder(document, source, library, self._infer, shapes).build()
            constants = {**built.graph.constants, **self._weights(built)}
        notes = () if self._random is None else (self._random.note,)
        return built.graph.with_(
            constants=constants,
            quantization=self._quantization,
            notes=(*built.graph.notes, *notes),
        )

    def _weights(self, built: DocumentGraph) -> Mapping[str, Array]:
        variables = built.variables
        files, self._files = self._files, None
        if files is None:
            return retained_values_of(variables, self._retained)
        find = finder(files, built, self._library, self._stored, self._random)
        integer = bool(built.graph.integer)
        values = load_variables(variables, find, self._quantization, integer)
        if self._stored is not None and self._is_whole:
            self._stored.check_all_used(variable.label for variable in variables)
        self._retained = {v.name: RetainedVariable(v, values[v.name]) for v in variables}
        return values


def load(
    model: str | Path | Bytes | ModelSource,
    native: Callable[[str], bool],
    infer: Infer | None = None,
    declarations: Mapping[str, str] | None = None,
) -> Graph:
    """Reads a model and returns its graph with the shapes in its text; see :class:`NnefModel`.

    Examples
    --------
    >>> from cml_engine import nnef
    >>> nnef.load("net.nnef", native=lambda op: True).outputs
    ('out',)
    """
    return NnefModel(model, native, infer, declarations).graph()


@contextmanager
def _reading(file: str) -> Iterator[None]:
    """A context in which a file is read: one load, with Python's garbage collector paused.

    A large model is a million small objects without garbage, and collections would double the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with load_budget(), depth_checked(file, "assign inner parts to names"):
            yield
    finally:
        if was_enabled:
            gc.enable()
