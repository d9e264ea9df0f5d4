"""Loads the values of variables: reads each label's file, checks it, and converts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from cml_engine.errors import ModelError, Source, TensorFileError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.io.load_limits import current_budget
from cml_engine.io.model_source import ModelSource, has_file
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact, Node
from cml_engine.nnef.expansion.document_builder import DocumentGraph, Variable
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.files.quant import dequantize
from cml_engine.nnef.files.safetensors import SafeTensor, Weights
from cml_engine.nnef.files.sources import tensor_blob
from cml_engine.nnef.files.tensor_file import (
    Blob,
    Header,
    ItemType,
    StoredTensor,
    read_header,
    read_stored,
    tensor_file_name,
)
from cml_engine.nnef.warning import warn

#: the cache key of values that do not depend on a line of ``graph.quant``
_ANY_LINE = ""


class DatFile:
    """The values of a variable in an NNEF tensor file."""

    def __init__(self, blob: Blob) -> None:
        self.name, self.offset = blob.name, blob.offset
        self._blob = blob

    def header(self) -> Header:
        return read_header(self._blob)

    def stored(self, header: Header) -> StoredTensor:
        return read_stored(self._blob, header)


#: The stored values of a variable, which are read on demand, fast in the order of ``offset``.
StoredVariable: TypeAlias = "DatFile | SafeTensor | RandomTensor"
Find: TypeAlias = Callable[[Variable], StoredVariable]


def finder(
    model: ModelSource,
    built: DocumentGraph,
    library: Library,
    weights: Weights | None,
    random: RandomWeights | None,
) -> Find:
    """Returns a function that returns the stored values of a variable, not read yet.

    They are in ``weights`` if given, else in the variable's tensor file. Missing values are
    random if ``random`` is given.
    """
    shapes = {v.name: v.fact.shape for v in built.variables}
    known_uses = uses(built.graph.nodes, shapes, library) if random else {}

    def find_stored(variable: Variable) -> StoredVariable | None:
        if weights is not None:
            return weights.tensor(variable)
        name = tensor_file_name(variable.label, variable.source)
        if random is not None and not has_file(model, name):
            return None
        return DatFile(tensor_blob(model, variable.label, variable.source))

    def find(variable: Variable) -> StoredVariable:
        tensor = find_stored(variable)
        if tensor is not None:
            return tensor
        if random is not None:
            use = known_uses.get(variable.name, use_by_shape(variable.fact.shape))
            return RandomTensor(variable.label, random, variable, use)
        assert weights is not None
        raise weights.missing(variable)

    return find


def load_variables(
    variables: Iterable[Variable],
    find: Find,
    quantization: Mapping[str, Attrs],
    integer: bool = False,
) -> dict[str, Array]:
    """Reads the values of all variables and returns them by the variable's name.

    ``find`` returns a variable's stored values. Variables whose labels are equal, ignoring case,
    share a file; each is read by the line of its own name in ``graph.quant``. The variables of
    an ``integer`` network are the stored integers.
    """
    variables = tuple(variables)
    blobs: dict[str, StoredVariable] = {}
    for variable in variables:
        if _file(variable) not in blobs:
            blobs[_file(variable)] = find(variable)
    values_by_name: dict[str, Array] = {}
    shared: dict[tuple[str, str, str], Array] = {}
    halves: list[Variable] = []
    for variable in sorted(variables, key=lambda v: blobs[_file(v)].offset):
        yield_to_frame()
        blob, quant = blobs[_file(variable)], quantization.get(variable.name)
        key = (_file(variable), variable.fact.dtype)
        values = shared.get((*key, _ANY_LINE), shared.get((*key, repr(quant))))
        if values is None:
            values, header = _read(variable, blob, quant, integer)
            is_plain = header.item is ItemType.FLOAT or variable.fact.dtype != "scalar"
            shared[*key, _ANY_LINE if is_plain else repr(quant)] = values
            halves += [variable] if (header.item, header.bits) == (ItemType.FLOAT, 16) else []
        values_by_name[variable.name] = _shared(variable, values)
    if halves:  # one warning per model: there may be hundreds of files
        warn(f"{len(halves)} files hold 16-bit floats: they take 32 bits here", halves[0].source)
    return {variable.name: values_by_name[variable.name] for variable in variables}


@dataclass(frozen=True, slots=True)
class RetainedVariable:
    """A variable and its value as it was read, to be reused at other input shapes."""

    variable: Variable
    value: Array


def retained_values_of(
    variables: Iterable[Variable], retained: Mapping[str, RetainedVariable]
) -> dict[str, Array]:
    """Returns the retained values of a graph's variables, by name, for new input shapes.

    Raises :class:`TensorFileError` if the new shapes change a variable's shape or label.
    """
    for variable in variables:
        earlier = retained[variable.name].variable
        if (variable.label, variable.fact) != (earlier.label, earlier.fact):
            raise TensorFileError(
                f"variable '{variable.name}' would be {variable.fact} of label "
                f"'{variable.label}' at these shapes; its file was read as {earlier.fact} of label "
                f"'{earlier.label}'",
                variable.source,
            )
    return {variable.name: retained[variable.name].value for variable in variables}


def _file(variable: Variable) -> str:
    """Returns a key of a variable's file: its label without leading slashes, in lower case."""
    return variable.label.lstrip("/").lower()


def to_engine(
    stored: StoredTensor,
    dtype: str,
    quant: Attrs | None,
    file: str,
    source: Source | None,
) -> Array:
    """Returns stored values as float32, int32 or bool, by the NNEF type ``dtype``.

    Integers stored for a scalar are dequantized by ``quant``, the tensor's line of ``graph.quant``.
    """
    if dtype == "logical":
        return stored.values
    if dtype == "integer":
        return _int32(stored.values, file)
    if stored.header.item is not ItemType.FLOAT:
        return dequantize(stored, quant, file)
    if stored.header.bits == 64:
        warn(f"'{file}' holds 64-bit floats: they are rounded to 32 bits", source)
    with np.errstate(over="ignore"):
        return stored.values.astype(np.float32, copy=False)


def _read(
    variable: Variable, blob: StoredVariable, quant: Attrs | None, integer: bool
) -> tuple[Array, Header]:
    """Reads and checks a variable's file.

    Returns its values, which are read-only, and its header.
    """
    try:
        header = blob.header()
        _check(variable.fact, header, blob.name, quant is not None)
        current_budget().charge_bytes(4 * header.size, f"'{blob.name}' as 32-bit values")
        stored = blob.stored(header)
        if integer and quant is not None and header.item is not ItemType.FLOAT:
            values = stored.values
        else:
            values = to_engine(stored, variable.fact.dtype, quant, blob.name, variable.source)
    except ModelError as error:
        raise type(error)(error.message, variable.source) from error.__cause__
    values.flags.writeable = False
    return values, header


def _shared(variable: Variable, values: Array) -> Array:
    if values.shape != variable.fact.shape:
        raise TensorFileError(
            f"label '{variable.label}' is shared: its file has shape {list(values.shape)}, "
            f"this variable wants {list(variable.fact.shape)}",
            variable.source,
        )
    return values


def _check(fact: Fact, header: Header, file: str, has_quant: bool) -> None:
    if header.shape != fact.shape:
        raise TensorFileError(
            f"'{file}' has shape {list(header.shape)}, the variable wants {list(fact.shape)}: "
            "correct one of them"
        )
    if not _suits(fact.dtype, header.item, has_quant):
        hint = (
            "add a line to graph.quant" if header.item is not ItemType.BOOL else "export it again"
        )
        raise TensorFileError(
            f"'{file}' holds {header.item.shown} items of {header.bits} bits, the variable wants "
            f"{fact.dtype}: {hint if fact.dtype == 'scalar' else 'correct one of them'}"
        )


def _suits(dtype: str, item: ItemType, has_quant: bool) -> bool:
    if dtype == "logical":
        return item is ItemType.BOOL
    if dtype == "integer":
        return item in (ItemType.INT, ItemType.UINT)
    if item in (ItemType.INT, ItemType.UINT):
        return has_quant
    return item is not ItemType.BOOL


def _int32(values: Array, file: str) -> Array:
    limits = np.iinfo(np.int32)
    if values.size and not (limits.min <= int(values.min()) and int(values.max()) <= limits.max):
        raise TensorFileError(
            f"'{file}' holds {values.min()} to {values.max()}: wanted integers of 32 bits"
        )
    return values.astype(np.int32, copy=False)


_ITEMS = {
    "scalar": (ItemType.FLOAT, 32),
    "integer": (ItemType.INT, 32),
    "logical": (ItemType.BOOL, 8),
}
_ADDED, _NEAR_ONE, _POSITIVE = "added", "near one", "positive"
#: the role of an operand, by parameter name
_OF_PARAM = {
    "bias": _ADDED, "offset": _ADDED, "mean": _ADDED, "scale": _NEAR_ONE,
    "variance": _POSITIVE, "alpha": _NEAR_ONE, "slope": _NEAR_ONE,
}  # fmt: skip
_OF_OPERATOR = {"add": _ADDED, "sub": _ADDED, "mul": _NEAR_ONE, "div": _POSITIVE}


class RandomWeights:
    """A seeded generator of weights that a model lacks; it counts the tensors that it made.

    Examples
    --------
    >>> graph = cml.load("net.nnef", random_weights=7)
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[str, int] = {}

    def array(self, name: str, shape: Sequence[int], dtype: str, use: str | float) -> Array:
        """Returns an array of random values for a tensor; the seed and ``name`` determine them.

        ``use`` is the tensor's fan-in, or its role in an operator. Integers and logicals are all 0.
        """
        self._made[name] = prod(shape)
        current_budget().charge_bytes(4 * prod(shape), f"the random weights of '{name}'")
        if dtype != "scalar":  # zeros are valid as any index or mask
            return np.zeros(shape, NUMPY_DTYPE[dtype])
        rng = np.random.default_rng([self.seed, *name.encode()])
        values = rng.standard_normal(shape, np.float32)
        if use == _POSITIVE:
            return np.asarray(np.exp(values / 8))
        if use in (_ADDED, _NEAR_ONE):
            return np.asarray(values / np.float32(16) + np.float32(use == _NEAR_ONE))
        return np.asarray(values / np.float32(max(float(use), 1.0) ** 0.5))

    @property
    def note(self) -> str:
        """The line of ``graph.notes`` that says how many tensors and values are random."""
        if not self._made:
            return f"weights    all are there: none are random (seed {self.seed})"
        counts = f"{len(self._made)} tensors, {sum(self._made.values()):,} values"
        meaning = "times are this network's, results are not"
        return f"weights    RANDOM (seed {self.seed}): {counts}; {meaning}"


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A variable without a file, whose values are random."""

    name: str
    weights: RandomWeights
    variable: Variable
    use: str | float
    offset: int = 0

    def header(self) -> Header:
        fact = self.variable.fact
        item, bits = _ITEMS[fact.dtype]
        return Header(fact.size * bits // 8, fact.shape, bits, item)

    def stored(self, header: Header) -> StoredTensor:
        fact = self.variable.fact
        return StoredTensor(header, self.weights.array(self.name, fact.shape, fact.dtype, self.use))


def uses(
    nodes: Iterable[Node], shapes: Mapping[str, tuple[int, ...]], library: Library
) -> dict[str, str | float]:
    """Returns the first use of each tensor in ``shapes``, by name, in the order of the nodes.

    A use is a fan-in, or the tensor's role in an operator.
    """
    first_uses: dict[str, str | float] = {}
    for node in nodes:
        params = library.lookup(node.op).signature.tensors
        for position, name in enumerate(node.inputs):
            if name in shapes and name not in first_uses:
                param = params[position].name if position < len(params) else ""
                first_uses[name] = _use(node, param, shapes[name])
    return first_uses


def role_of(op: str, param: str) -> str | None:
    """Returns the role of a weight that is an operator's operand, or None if it has no known one.

    ``param`` is the name of the operator's parameter.
    """
    return _OF_OPERATOR.get(op) or _OF_PARAM.get(param)


def use_by_shape(shape: Sequence[int]) -> float:
    """Returns the assumed fan-in of a tensor of unknown use: the product of its inner extents.

    They are all extents but the first.
    """
    return float(prod(shape[1:]))


def _use(node: Node, param: str, shape: tuple[int, ...]) -> str | float:
    if node.op == "matmul" and len(shape) > 1:
        inner_last = (param == "A") != bool(node.attrs.get(f"transpose{param}"))
        return float(shape[-1 if inner_last else -2])
    if param == "filter" and node.op.endswith("deconv") and len(shape) > 1:
        return prod(shape) / max(shape[1], 1)
    return role_of(node.op, param) or use_by_shape(shape)
