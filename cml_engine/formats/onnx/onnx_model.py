"""Reads an ONNX model and makes graphs of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from cml_engine.compiler.integer.digest import WHY
from cml_engine.errors import ModelError, depth_checked
from cml_engine.errors.arguments import check_known_names
from cml_engine.formats.format import ConverterOptions, Model
from cml_engine.formats.onnx.importer import Importer, choose_outputs
from cml_engine.formats.onnx.integer_graph import build_integer_graph
from cml_engine.formats.onnx.model import read_model
from cml_engine.formats.onnx.qdq_reader import QdqReader, is_quantized
from cml_engine.formats.onnx.ranges import INPUT_BITS
from cml_engine.formats.onnx.tensors import ExternalData
from cml_engine.formats.onnx.values import TooWide
from cml_engine.formats.onnx.weight_uses import find_weight_uses
from cml_engine.io.file_kinds import HEAD_BYTES, foreign_file, foreign_text
from cml_engine.io.model_source import Bytes, SourceFile, file_source, shown
from cml_engine.ir.graph import Graph, Shapes


class OnnxModel:
    """An ONNX model in memory; makes graphs for any input shapes.

    Parameters
    ----------
    model : a file, the bytes of one, or a source of such a file and of the data beside it.
    options : the constants become constants of the graph, the random weights replace external data
        that is missing, and what the outputs do not need is not imported. The graph's inputs must
        list the names of ``inputs``.
    """

    def __init__(self, model: Model, options: ConverterOptions) -> None:
        if isinstance(model, Bytes):
            self._file, source, data, self._name = "<bytes>", None, memoryview(model), "model"
        else:
            source = file_source(Path(model)) if isinstance(model, str | Path) else model
            self._file, self._name = shown(source, source.graph), PurePosixPath(source.graph).stem
            data = SourceFile(source, source.graph).span()
        head = bytes(data[:HEAD_BYTES])
        if kind := foreign_file(head) or foreign_text(head):
            raise ModelError(f"'{self._file}' is no ONNX model, but {kind}")
        self._options = options
        self._constants = {name: np.array(value) for name, value in options.constants.items()}
        with depth_checked(self._file, "export it again"):
            external = ExternalData(source, options.random_weights)
            self._model = read_model(data, self._file, external)
            if options.outputs:
                self._model = choose_outputs(self._model, options.outputs)
            external.uses = find_weight_uses(self._model)
        listed = [info.name for info in self._model.graph.inputs]
        check_known_names(options.inputs, listed, f"'{self._file}' has no input", "inputs")

    def graph(self, shapes: Shapes) -> Graph:
        """Returns the graph for the given input shapes, by input name.

        Inputs that ``shapes`` lacks have the shapes that the file states.
        """
        with depth_checked(self._file, "export it again"):
            graph = self._graph(shapes)
        random = self._options.random_weights
        return graph.with_(notes=(*graph.notes, random.note)) if random else graph

    def _graph(self, shapes: Shapes) -> Graph:
        """Imports and returns the graph; a quantized model becomes an integer network if it can.

        Otherwise a note of the graph says why it is a network of floats.
        """
        notes: tuple[str, ...] = ()
        if is_quantized(self._model) and not self._options.placeholders:
            reading = QdqReader()
            importer = Importer(self._model, self._options.inputs, reading=reading)
            try:
                graph = importer.graph(shapes, self._constants, self._name)
                return build_integer_graph(graph, reading.stored)
            except ModelError as error:
                notes = (f"{WHY} {error}",)
        graph = self._in_floats(shapes)
        return graph.with_(notes=(*graph.notes, *notes))

    def _in_floats(self, shapes: Shapes) -> Graph:
        """Imports the model, with smaller integer inputs where integers may not fit otherwise."""
        options, bits = self._options, dict[str, int]()
        first_error: TooWide | None = None
        while True:
            importer = Importer(self._model, options.inputs, options.placeholders, bits=bits)
            try:
                return importer.graph(shapes, self._constants, self._name)
            except TooWide as error:
                first_error = first_error or error
                wide = [n for n in error.inputs if bits.get(n) != INPUT_BITS[-1]]
                if not wide:
                    raise first_error from None
                steps = dict(zip(INPUT_BITS, INPUT_BITS[1:], strict=False))
                bits |= {name: steps[bits.get(name, INPUT_BITS[0])] for name in wide}
