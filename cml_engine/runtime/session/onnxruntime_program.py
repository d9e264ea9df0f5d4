"""Runs a network in ONNX Runtime, for sessions without a GPU (``CompileOptions(cpu=…)``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from cml_engine.cpu.cpu_program import HostProgram, Watch
from cml_engine.errors import DeviceError, InputError, UnsupportedOp
from cml_engine.formats.onnx.export import onnx_parts
from cml_engine.formats.onnx.export.game_operators import placeholders
from cml_engine.formats.sliders import attribute_sliders
from cml_engine.ir.graph import Array, Graph

_ELSE = "leave cpu='onnxruntime' out, then NumPy runs it"
#: ONNX Runtime's level of messages that are fatal: failures are raised as exceptions anyway
_FATAL = 4


class OnnxRuntimeProgram(HostProgram):
    """A graph that is ready to run in ONNX Runtime.

    ``runner`` is its session of the exported graph. With ``retain``, inputs keep their values
    and the whole network runs.
    """

    def __init__(self, graph: Graph, runner: Any, retain: bool) -> None:
        super().__init__(graph, retain)
        self._runner = runner
        self._names = [output.name for output in runner.get_outputs()]

    @classmethod
    def of(cls, graph: Graph, threads: int | None, retain: bool) -> OnnxRuntimeProgram:
        """Exports a graph that no pass has changed, and loads it in ONNX Runtime.

        ``threads`` are the cores that a run takes; None is half of the machine's. Raises
        :class:`DeviceError` if ONNX Runtime is not installed, and :class:`UnsupportedOp` if the
        graph has no ONNX form that it takes.
        """
        data = _exported(graph)
        try:
            import onnxruntime
        except ImportError:
            raise DeviceError(
                "cpu='onnxruntime' needs the package onnxruntime: pip install "
                f'"cml-engine[onnxruntime]", or {_ELSE}'
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or max(1, (os.cpu_count() or 1) // 2)
        # idle threads of its pool would otherwise keep cores of the game busy between runs
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = _FATAL
        try:
            runner = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of pybind11, without a common class
            raise UnsupportedOp(
                f"'{graph.name}' does not load in ONNX Runtime {onnxruntime.__version__}: {error}; "
                f"{_ELSE}"
            ) from None
        return cls(graph, runner, retain)

    def without_state(self) -> OnnxRuntimeProgram:
        return OnnxRuntimeProgram(self.graph, self._runner, False)

    def _run(self, inputs: Mapping[str, Array], watch: Watch | None, before: Watch | None) -> None:
        if watch is not None or before is not None:
            raise InputError(f"watch: ONNX Runtime runs a network as a whole: {_ELSE}")
        all_inputs = self._with_retained(inputs)
        feeds = {name: np.ascontiguousarray(v) for name, v in {**all_inputs, **self._state}.items()}
        results = self._runner.run(self._names, feeds)
        names = (*self.graph.outputs, *self.graph.taps)
        self._results = dict(zip(names, results, strict=False))
        variables = [variable for variable, _ in self.graph.updates]
        self._state = dict(zip(variables, results[len(names) :], strict=True))
        self._results |= {name: self._state[name] for name in names if name in self._state}


def _exported(graph: Graph) -> bytes:
    """Returns the graph as an ONNX file with the kept tensors among its outputs."""
    if graph.integer:
        raise InputError(
            f"'{graph.name}' is an integer network (cml docs integer), and ONNX Runtime rounds "
            f"otherwise: {_ELSE}"
        )
    if graph.cooked_form is not None:
        raise InputError(
            f"'{graph.name}' is cooked: load the model that it was made of, or {_ELSE}"
        )
    if moved := attribute_sliders(graph):
        raise InputError(
            f"'{graph.name}' has the slider '{moved[0]}' of an attribute, which is fixed in ONNX: "
            f"load the model without it, or {_ELSE}"
        )
    if missing := placeholders(graph):
        raise UnsupportedOp(
            f"ONNX Runtime has no operator '{missing[0]}' of '{graph.name}': give it an expression "
            f"or a body (cml docs custom_operators), or {_ELSE}"
        )
    try:
        return b"".join(onnx_parts(graph.with_(outputs=(*graph.outputs, *graph.taps.values()))))
    except UnsupportedOp as error:
        raise UnsupportedOp(f"{error.message}; or {_ELSE}", error.source) from None
