"""One hierarchy of errors.

Two kinds are kept apart, because they are different people's work: a :class:`ModelError` or
:class:`InputError` is the caller's to mend, an :class:`InternalError` is ours. Every message says
what went wrong (file, line, operator), what was wanted against what was got, and the next step.
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
    """A place in a model's text: ``line`` and ``column`` count from 1, 0 means unknown."""

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
    """Base of everything this package raises on purpose.

    Parameters
    ----------
    message : what · wanted against got · next step.
    source : where in the model's text, if it is about the model's text.
    """

    def __init__(self, message: str, source: Source | None = None) -> None:
        self.message = message
        self.source = source
        super().__init__(message)

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
    """Errors of the block that name no place in a model's text are about this one."""
    try:
        yield
    except CmlError as error:
        error.source = error.source or source
        raise


class ModelError(CmlError):
    """The model folder is wrong: its text, its weights, or what its operators are asked to do."""


class NnefSyntaxError(ModelError):
    """The text is not NNEF."""


class TensorFileError(ModelError):
    """A ``.dat`` file is missing, damaged, or not what the graph declares."""


class ShapeError(ModelError):
    """An operator cannot take tensors of these shapes, types or attribute values."""


class UnsupportedOp(ModelError):
    """The model uses an operator (or a variant of one) that this engine does not know."""


class NeedsConstant(UnsupportedOp):
    """An operator needs a value at load that is known only when the network runs; ``inputs`` are
    the graph's inputs from which it is computed."""

    def __init__(
        self, message: str, source: Source | None = None, inputs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, source)
        self.inputs = inputs


class RangeError(ModelError):
    """An integer network whose sums cannot be proven to fit into 32 bits."""


class InputError(CmlError):
    """An argument of the caller (a tensor, a file, an option) does not fit."""


class OpenShape(InputError):
    """A model leaves extents of an ``input`` open, and no shape was given for it.

    ``known`` has the extents that the model states, None for the others; it is None if not even
    their number is known.
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
    """A game's own operator is at fault: its declaration, or a function that it brought."""


class DeviceError(CmlError):
    """No usable GPU, or the GPU refused (memory, limits)."""


class OutOfGpuMemory(DeviceError):
    """No more memory within the budget, or none on the GPU; the message lists who holds what."""


class ShaderCompileError(CmlError):
    """HLSL that does not compile; the message shows file, line and the compiler's words."""


class CorruptArtifact(CmlError):
    """A cooked file is damaged, cut off, or none; nothing of it was used."""


class StaleArtifact(CmlError):
    """A cooked file is whole, and does not have what is wanted of it; the message says what to
    cook."""


class InternalError(CmlError):
    """An invariant of this engine was broken: please report it with the model."""
