"""The error classes of the engine.

The caller can correct a :class:`ModelError` or an :class:`InputError`; an :class:`InternalError`
is a bug in the engine. Every message states the problem (file, line, operator), the expected and
the actual value, and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = [
    "CmlError",
    "CorruptArtifact",
    "DeviceError",
    "InputError",
    "InternalError",
    "ModelError",
    "NeedsConstant",
    "NnefSyntaxError",
    "OpenShape",
    "OperatorError",
    "OutOfGpuMemory",
    "RangeError",
    "ShaderCompileError",
    "ShapeError",
    "Source",
    "StaleArtifact",
    "TensorFileError",
    "UnsupportedOp",
]


@dataclass(frozen=True, slots=True)
class Source:
    """A position in a model's text. ``line`` and ``column`` count from 1; 0 means unknown."""

    file: str
    line: int = 0
    column: int = 0
    text: str = ""

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        return place


class CmlError(Exception):
    """The base class of all errors that this package raises deliberately.

    Parameters
    ----------
    message : the problem, the expected and the actual value, and the next step.
    source : the position in the model's text, if the error refers to it.
    """

    def __init__(self, message: str, source: Source | None = None) -> None:
        self.message = message
        self.source = source
        super().__init__(message)

    def locate(self, title: str, source: Source | None) -> None:
        """Adds the operator and its position in the model, unless the error has a position."""
        if self.source is None:
            if title not in self.message:
                self.message = f"{title}: {self.message}"
            self.source = source

    def __str__(self) -> str:
        if self.source is None:
            return self.message
        shown = f"{self.source}: {self.message}"
        if self.source.text:
            shown += f"\n    {self.source.text.rstrip()}"
            if self.source.column:
                lead = self.source.text[: self.source.column - 1]
                shown += "\n    " + "".join("\t" if c == "\t" else " " for c in lead) + "^"
        return shown


@contextmanager
def located(source: Source | None) -> Iterator[None]:
    """Sets the source of errors raised in the block that have none."""
    try:
        yield
    except CmlError as error:
        error.source = error.source or source
        raise


class ModelError(CmlError):
    """Raised if the model is invalid: its text, its weights, or the arguments of its operators."""


class NnefSyntaxError(ModelError):
    """Raised if a text is not valid NNEF."""


class TensorFileError(ModelError):
    """Raised if a ``.dat`` file is missing, damaged, or does not match its declaration in the
    graph."""


class ShapeError(ModelError):
    """Raised if an operator does not support tensors of these shapes, types or attribute values."""


class UnsupportedOp(ModelError):
    """Raised if the model uses an operator, or a variant of one, that this engine does not
    support."""


class NeedsConstant(UnsupportedOp):
    """Raised if an operator needs a value at load time that is only known when the network runs.

    ``inputs`` are the graph inputs that the value is computed from.
    """

    def __init__(
        self, message: str, source: Source | None = None, inputs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, source)
        self.inputs = inputs


class RangeError(ModelError):
    """Raised if the sums of an integer network cannot be proven to fit into 32 bits."""


class InputError(CmlError):
    """Raised if an argument of the caller (a tensor, a file, an option) is invalid."""


class OpenShape(InputError):
    """Raised if a model leaves extents of an ``input`` open and no shape was given for it.

    ``known`` has the extents that the model states, and None for the others. It is None if even
    the rank is unknown.
    """

    def __init__(
        self,
        message: str,
        input: str,
        known: tuple[int | None, ...] | None,
        source: Source | None = None,
    ) -> None:
        super().__init__(message, source)
        self.input, self.known = input, known


class OperatorError(CmlError):
    """Raised if a game's own operator is faulty: its declaration or one of its functions."""


class DeviceError(CmlError):
    """Raised if there is no usable GPU, or if the GPU refused a request (memory, limits)."""


class OutOfGpuMemory(DeviceError):
    """Raised if the memory budget or the GPU's memory is exhausted; the message lists all
    owners."""


class ShaderCompileError(CmlError):
    """Raised if HLSL does not compile; the message has the file, the line and the compiler's
    output."""


class CorruptArtifact(CmlError):
    """Raised if a file is damaged, truncated, or not a cooked file; none of its content was
    used."""


class StaleArtifact(CmlError):
    """Raised if a valid cooked file lacks what was requested; the message states what to cook."""


class InternalError(CmlError):
    """Raised if an invariant of this engine was violated; please report it with the model."""
