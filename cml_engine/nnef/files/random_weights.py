"""Makes random weights that keep values finite, to measure the cost of an untrained network.

The results of a matrix product or a convolution are on average as large as its input: the
variance of the weights is one over the number of products in a sum. Addends are small, and
factors are near 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Node
from cml_engine.nnef.expansion.document_builder import Variable
from cml_engine.nnef.expansion.signatures import operator_signatures
from cml_engine.nnef.files.tensor_file import Header, ItemType, StoredTensor

_ITEMS = {
    "scalar": (ItemType.FLOAT, 32),
    "integer": (ItemType.INT, 32),
    "logical": (ItemType.BOOL, 8),
}
_ADDED, _NEAR_ONE, _POSITIVE = "added", "near one", "positive"
#: the role of an operand, by parameter name
_OF_PARAM = {
    "bias": _ADDED, "offset": _ADDED, "mean": _ADDED, "scale": _NEAR_ONE,
    "variance": _POSITIVE, "alpha": _NEAR_ONE,
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
        made = f"{len(self._made)} tensors, {sum(self._made.values()):,} values"
        what = "times are this network's, results are not"
        return f"weights    RANDOM (seed {self.seed}): {made}; {what}"


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A variable without a file, whose values are random: a ``StoredVariable``."""

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


def uses(nodes: Iterable[Node], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str | float]:
    """Returns the first use of each tensor in ``shapes``, by name, in the order of the nodes.

    A use is a fan-in, or the tensor's role in an operator.
    """
    found: dict[str, str | float] = {}
    for node in nodes:
        known = operator_signatures().get(node.op)
        for position, name in enumerate(node.inputs):
            if name in shapes and name not in found:
                params = known.tensors if known else ()
                param = params[position].name if position < len(params) else ""
                found[name] = _use(node, param, shapes[name])
    return found


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
    if node.op in _OF_OPERATOR:
        return _OF_OPERATOR[node.op]
    if param in _OF_PARAM and node.op != "matmul":
        return _OF_PARAM[param]
    return use_by_shape(shape)
