"""The error classes of the engine.

The caller can correct a :class:`ModelError` or an :class:`InputError`; an :class:`InternalError`
is a bug in the engine. Every message states the problem (file, line, operator), the expected and
the actual value, and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine.errors.arguments import FloatRange, IntegerRange
else:
    __getattr__, __dir__, _ = lazy_names(
        __name__, {"cml_engine.errors.arguments": "FloatRange IntegerRange"}
    )

__all__ = [
    "CmlError",
    "CorruptArtifact",
    "DeviceError",
    "FloatRange",
    "InputError",
    "IntegerRange",
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
    """A position in a model's text: file, line, column, and the text of the line.

    ``line`` and ``column`` count from 1; 0 means unknown.

    Examples
    --------
    >>> str(cml.errors.Source("net/graph.nnef", line=4, column=9))
    'net/graph.nnef:4:9'
    """

    file: str
    line: int = 0
    column: int = 0
    text: str = ""

    def __str__(self) -> str:
        text = self.file
        if self.line:
            text += f":{self.line}"
            if self.column:
                text += f":{self.column}"
        return text


class CmlError(Exception):
    """The base class of all errors that this package raises deliberately.

    Parameters
    ----------
    message : the problem, the expected and the actual value, and the next step.
    source : the position in the model's text, if the error refers to it.

    Examples
    --------
    >>> try:
    ...     cml.load("missing.nnef")
    ... except cml.CmlError as error:
    ...     message = str(error)
    """

    def __init__(self, message: str, source: Source | None = None) -> None:
        self.message = message
        self.source = source
        super().__init__(message)

    def locate(self, title: str, source: Source | None) -> None:
        """Puts the operator's ``title`` before the message and sets the error's ``source``.

        Does nothing if the error has a source.
        """
        if self.source is None:
            if title not in self.message:
                self.message = f"{title}: {self.message}"
            self.source = source

    def __str__(self) -> str:
        return _shortened(self._text())

    def _text(self) -> str:
        if self.source is None:
            return self.message
        text = f"{self.source}: {self.message}"
        if self.source.text:
            text += f"\n    {self.source.text.rstrip()}"
            if self.source.column:
                text_before = self.source.text[: self.source.column - 1]
                text += "\n    " + "".join("\t" if c == "\t" else " " for c in text_before) + "^"
        return text


#: The most characters of a line of a message, and those of its end that are kept.
_LONGEST, _END = 4000, 1000


def _shortened(text: str) -> str:
    """Returns a message without the middle of lines that long names of a file flood."""
    return "\n".join(
        line if len(line) <= _LONGEST else f"{line[: _LONGEST - _END]} … {line[-_END:]}"
        for line in text.split("\n")
    )


@contextmanager
def located(source: Source | None) -> Iterator[None]:
    """Sets the source of each :class:`CmlError` that is raised in the block and has none."""
    try:
        yield
    except CmlError as error:
        error.source = error.source or source
        raise


@contextmanager
def depth_checked(file: str, advice: str) -> Iterator[None]:
    """Turns a ``RecursionError`` of the block into a :class:`ModelError` that names the file."""
    try:
        yield
    except RecursionError:
        raise ModelError(f"'{file}' is nested too deep: {advice}") from None


class ModelError(CmlError):
    """Raised if the model is invalid: its text, its weights, or the arguments of its operators.

    Examples
    --------
    >>> try:
    ...     cml.load(cml.nnef.MemoryModel("version 1.0; graph g(x) -> (y) { y = relu(z); }"))
    ... except cml.ModelError as error:
    ...     line = error.source.line
    """


class NnefSyntaxError(ModelError):
    """Raised if a text is not valid NNEF.

    Examples
    --------
    >>> try:
    ...     cml.load(cml.nnef.MemoryModel("graph"))
    ... except cml.errors.NnefSyntaxError as error:
    ...     error.source.line
    1
    """


class TensorFileError(ModelError):
    """Raised if a ``.dat`` file is missing, damaged, or contradicts its declaration in the graph.

    Examples
    --------
    >>> try:
    ...     graph = cml.load("net.nnef")
    ... except cml.errors.TensorFileError as error:
    ...     print(error)  # a .dat file is missing or damaged
    """


class ShapeError(ModelError):
    """Raised if an operator does not support tensors of these shapes, types or attribute values.

    Examples
    --------
    >>> text = "x = external<scalar>(shape = [2, 3]); y = matmul(x, x);"
    >>> try:
    ...     cml.load(cml.nnef.MemoryModel(f"version 1.0; graph g(x) -> (y) {{ {text} }}"))
    ... except cml.errors.ShapeError as error:
    ...     error.source.line
    1
    """


class UnsupportedOp(ModelError):
    """Raised if the model uses an operator, or a variant of one, that the engine lacks.

    Examples
    --------
    >>> text = "x = external<scalar>(shape = [2, 3]); y = swirl(x);"
    >>> try:
    ...     cml.load(cml.nnef.MemoryModel(f"version 1.0; graph g(x) -> (y) {{ {text} }}"))
    ... except cml.errors.UnsupportedOp as error:
    ...     message = str(error)
    """


class NeedsConstant(UnsupportedOp):
    """Raised if an operator needs a value at load time that is only known when the network runs.

    ``inputs`` are the graph inputs that the value is computed from.

    Examples
    --------
    >>> try:
    ...     graph = cml.load("net.nnef")
    ... except cml.errors.NeedsConstant as error:
    ...     graph = cml.load("net.nnef", constants={name: 1 for name in error.inputs})
    """

    def __init__(
        self, message: str, source: Source | None = None, inputs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, source)
        self.inputs = inputs


class RangeError(ModelError):
    """Raised if the sums of an integer network cannot be proven to fit into 32-bit integers.

    Examples
    --------
    >>> try:
    ...     session = cml.Session(graph, "cpu")
    ... except cml.errors.RangeError:
    ...     pass  # quantize with other samples or fewer bits
    """


class InputError(CmlError):
    """Raised if an argument of the caller (a tensor, a file, an option) is invalid.

    Examples
    --------
    >>> try:
    ...     session.run({"picture": image})
    ... except cml.InputError:
    ...     pass  # the input is called "image"
    """


class OpenShape(InputError):
    """Raised if a model leaves extents of an ``input`` open and no shape was given for it.

    ``known`` has the extents that the model states, and None for the others. It is None if even
    the rank is unknown.

    Examples
    --------
    >>> try:
    ...     graph = cml.load("net.nnef")
    ... except cml.errors.OpenShape as error:
    ...     graph = cml.load("net.nnef", shapes={error.input: (1, 3, 8, 8)})
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
    """Raised if a game's own operator is faulty: its declaration or one of its functions.

    Examples
    --------
    >>> try:
    ...     cml.register(cml.OpSpec(name="not a name"))
    ... except cml.errors.OperatorError as error:
    ...     message = str(error)
    """


class DeviceError(CmlError):
    """Raised if there is no usable GPU, or if the GPU refused a request (memory, limits).

    Examples
    --------
    >>> try:
    ...     gpu = cml.Gpu()
    ... except cml.DeviceError:
    ...     gpu = None  # run on "cpu"
    """


class OutOfGpuMemory(DeviceError):
    """Raised if the memory budget or the GPU's memory is exhausted.

    The message lists all owners of memory.

    Examples
    --------
    >>> try:
    ...     session = cml.Session(graph, gpu)
    ... except cml.errors.OutOfGpuMemory as error:
    ...     print(error)  # lists the owners of the memory
    """


class ShaderCompileError(CmlError):
    """Raised if HLSL does not compile.

    The message has the file, the line and the compiler's output.

    Examples
    --------
    >>> try:
    ...     session = cml.Session(graph, gpu)
    ... except cml.errors.ShaderCompileError as error:
    ...     print(error)  # the HLSL file, the line, and the compiler's words
    """


class CorruptArtifact(CmlError):
    """Raised if a file is damaged, truncated, or not a cooked file.

    None of its content was used.

    Examples
    --------
    >>> try:
    ...     cml.load_cooked(b"not a cooked file")
    ... except cml.CorruptArtifact:
    ...     pass  # copy the file again
    """


class StaleArtifact(CmlError):
    """Raised if a valid cooked file lacks what was requested; the message states what to cook.

    Examples
    --------
    >>> try:
    ...     session = cml.Session(cml.load_cooked(cml.cooked.cook(graph, ["portable"])), gpu)
    ... except cml.StaleArtifact:
    ...     pass  # cook the network for this device
    """


class InternalError(CmlError):
    """Raised if an invariant of this engine was violated; please report it with the model.

    Examples
    --------
    >>> try:
    ...     outputs = session.run({"image": image})
    ... except cml.errors.InternalError as error:
    ...     print(f"please report this with the model: {error}")
    """
