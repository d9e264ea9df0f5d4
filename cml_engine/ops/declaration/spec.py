"""The declaration of an operator, :class:`OpSpec`, from which everything else is derived.

Shape inference, the CPU run, the GPU kernel, its cost, its tests, its benchmark and its line in
the documentation all come from the one declaration. A game's own operator is declared by the same
call as a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from cml_engine.ir.graph import Array, Attrs, Fact, Node
from cml_engine.ops.declaration.expression import Formula
from cml_engine.ops.declaration.scratch import Scratch

#: ``infer(attrs, *input facts) -> Fact`` (or a list of facts where there are several results)
Infer = Callable[..., "Fact | Sequence[Fact]"]
#: ``cpu(attrs, *input arrays) -> array`` (or a list of arrays)
Cpu = Callable[..., "Array | Sequence[Array]"]
#: takes a :class:`~cml_engine.ops.declaration.lowering.Lowering`, which imports this module
Lower = Callable[..., "Iterable[Dispatch]"]
#: ``prepare(attrs, input facts, constants, scratch) -> cpu function of this node``: constants by
#: position, None for an input that is not constant; None where ``cpu`` is as fast
Prepare = Callable[[Attrs, "Sequence[Fact]", "Sequence[Array | None]", Scratch], "Cpu | None"]
#: the preprocessor definitions that choose a kernel's variant
Defines = dict[str, int | str]
#: the default number of threads in a workgroup
GROUP = 64
#: the blocked feature maps of a node that may be stored in 16 bits: none; each independently; all
#: or none; the operands
Half = Literal["none", "each", "alike", "reads"]
#: the operands of the elementwise operators that a kernel can apply to its result
Epilogues: TypeAlias = Literal["none", "places", "columns", "channels"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of a step: ``flops`` (a multiply-add is 2) and bytes moved.

    Examples
    --------
    >>> cml.ops.Cost(flops=2e6, read=4096, written=1024).bytes
    5120
    """

    flops: float
    read: float
    written: float

    @classmethod
    def moving(cls, flops: float, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
        """Returns a cost of ``flops`` that reads all inputs once and writes all outputs once."""
        return cls(flops, sum(f.nbytes for f in inputs), sum(f.nbytes for f in outputs))

    @property
    def bytes(self) -> float:
        return self.read + self.written

    def scaled(self, share: float) -> Cost:
        """Returns the cost multiplied by ``share``."""
        return Cost(self.flops * share, self.read * share, self.written * share)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True)
class LiveParams:
    """The parameters of a dispatch that depend on inputs of the network, its ``sliders``.

    ``compute(values)`` returns all parameters from the values of some sliders, by name.
    """

    sliders: tuple[str, ...]
    compute: Callable[[Mapping[str, Array]], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch of a kernel: ``groups`` workgroups, addressed by one linear index.

    ``tensors`` are names, bound in this order as ``T0``, ``T1``, … in the shader. ``params`` are
    the values of the kernel's declared parameters, ``defines`` choose the variant. Nothing may
    communicate between workgroups of one dispatch, and the result must be the same for every
    partition of ``[0, groups)`` into ranges run in any order.

    Examples
    --------
    >>> dispatch = cml.ops.Dispatch(groups=16, tensors=("x", "y"), params={"count": 1024})
    """

    groups: int
    tensors: tuple[str, ...]
    params: Mapping[str, object] = field(default_factory=dict)
    defines: Mapping[str, int | str] = field(default_factory=dict)
    #: the number of ``tensors``, counted from the last, that it writes
    writes: int = 1
    #: another kernel than the operator's own, for operators made of several
    kernel: Kernel | None = None
    #: its part of the operator's cost; None = in proportion to its workgroups
    cost: Cost | None = None
    #: the kernel variant and tile; "" if there was no choice
    variant: str = ""
    #: how ``params`` follow from the network's sliders
    live: LiveParams | None = None

    @property
    def written(self) -> tuple[str, ...]:
        return self.tensors[len(self.tensors) - self.writes :]


@dataclass(frozen=True)
class Kernel:
    """An HLSL file and its launch parameters.

    A game's file defines ``void kernel(uint thread)``, which is called once per thread and
    accesses its tensors and attributes under their declared names: docs/custom_operators.md.
    (The engine's own kernels have ``params``, ``lower`` and a ``main`` instead.)

    Parameters
    ----------
    path : your file, relative to the Python file that calls :func:`register`, or absolute; or a
        file of ``shaders_hlsl/`` by name.
    params : for kernels with a ``main`` of their own: the shader's parameters,
        ``"n:u shape:u8 alpha:f pad:i2"``: a name, a type (``u`` uint, ``i`` int, ``f`` float)
        and, for an array, its length. The shader reads them as ``alpha`` and ``shape(i)``; the
        accessors are generated.
    lower : ``lower(op: Lowering) -> iterable of Dispatch``, for operators of several passes; see
        :meth:`Lowering.launch`.
    threads : for one pass instead of ``lower``: ``threads(attrs, *input facts)`` returns the number
        of threads, or one for each dimension. Shapes are in elements as the kernel sees them.
        Without ``lower`` and ``threads`` there is one thread for each element of the first result.
    group : threads per workgroup, the shader's ``GROUP``; two or three numbers for a kernel whose
        threads are ``uint2`` or ``uint3``.
    layouts : the memory layouts (``cml_engine/ir/layout.py``) that the kernel supports.
        ``"plain"``: only plain.
        ``"same"``: plain or c4, the same for all feature maps of the node; c4 only if the channels
        are a multiple of four.
        ``"copies"``: like "same", but integer feature maps may have any number of channels,
        because padding lanes stay zero.
        ``"each"``: like "same", but feature maps of a single position, which are equal in both
        layouts, may have another layout than the others.
        ``"blocks"``: like "same", but the feature maps may differ in channels, as split's do.
        ``"joins"``: like "blocks", but integer feature maps may have any number of channels.
        ``"any"``: each tensor in either layout; c4 is preferred.
    half : the feature maps that the kernel supports in 16 bits (c4h) wherever it supports c4; a
        function ``half(node, facts) -> Half`` if that differs between nodes.
    epilogues : the operands of the elementwise operators that the kernel can apply to its result
        before storing it: ``"places"``: one number, or one for each element of the result;
        ``"columns"``: also one for each index of the last axis;
        ``"channels"``: also one for each channel or each position.
    in_place : the operand whose memory the first result may take if nothing reads the operand
        afterwards. Each thread must then read of it only the elements that the thread itself
        writes, before it writes them.
    trusted : True if the shader runs without bounds and loop checks. The engine's own do; a game's
        need not.
    source : the HLSL code instead of a ``path``.
    defines : defines of the HLSL code, by name.
    alternatives : further kernels of the operator. Of those that accept a node the cheapest is the
        default, and tuning measures all. What they state of layouts, half and in_place is what
        this kernel states, or nothing; they are left out where the plan needs it.
    cost : ``cost(op: Lowering)`` returns the expected time in any unit, or None if the kernel does
        not accept the node or the device (``op.limits``); without it the time is 1.
    name : the kernel's name among its alternatives; by default that of its file.
    interface : HLSL that the engine generates for the kernel; do not set it.

    Examples
    --------
    >>> kernel = cml.Kernel("worley.hlsl", params="seed:u count:u")
    """

    path: str | Path = ""
    params: str = ""
    lower: Lower | None = None
    threads: Callable[..., int | Sequence[int]] | None = None
    group: int | tuple[int, ...] = GROUP
    layouts: Literal["plain", "same", "copies", "each", "blocks", "joins", "any"] = "plain"
    half: Half | Callable[[Node, Mapping[str, Fact]], Half] = "none"
    epilogues: Epilogues = "none"
    in_place: str = ""
    trusted: bool = False
    source: str = ""
    defines: Mapping[str, int | str] = field(default_factory=dict)
    alternatives: Sequence[Kernel] = ()
    cost: Callable[..., float | None] | None = None
    name: str = ""
    interface: str = ""

    @property
    def label(self) -> str:
        """The kernel's name among its alternatives."""
        return self.name or Path(self.path).stem

    @property
    def group_shape(self) -> tuple[int, ...]:
        """The threads of a workgroup along each dimension."""
        return self.group if isinstance(self.group, tuple) else (self.group,)


#: a kernel of the engine's own: its shader runs without bounds and loop checks
engine_kernel = partial(Kernel, trusted=True)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest allowed difference of two results ``a`` and ``b``, and the reason for it.

    ``|a - b| <= atol + rtol |b| + of_largest max|b|``. The last term is for sums of many products,
    whose rounding depends on the terms and not on the result.

    Examples
    --------
    >>> cml.ops.Tolerance(rtol=1e-5, atol=1e-6, why="a subtraction and a root").rtol
    1e-05
    """

    rtol: float
    atol: float
    why: str = ""
    of_largest: float = 0.0


EXACT = Tolerance(0.0, 0.0, "moves or compares values, computes none")
ROUNDING = Tolerance(1e-6, 1e-6, "one rounding per operation")
SUMMATION = Tolerance(4e-6, 4e-6, "a sum in single precision: a rounding per term")
POSITION = Tolerance(
    2e-5, 2e-5, "a position is rounded: an error of 2^-24 of it, times the slope there"
)


@dataclass(frozen=True)
class Case:
    """One test of an operator: attributes and inputs.

    ``inputs`` may contain shapes, which are filled with random values, arrays, or
    ``Random(shape, low, high)``. ``note`` states the purpose of the case.

    Examples
    --------
    >>> cml.ops.Case(((1, 3, 17, 9),), {"seed": 7}).attrs
    {'seed': 7}
    """

    inputs: tuple[CaseInput, ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    @property
    def id(self) -> str:
        def show(value: object) -> str:
            if isinstance(value, np.ndarray):
                return f"{value.dtype}{list(value.shape)}"
            return str(value).replace(" ", "")

        parts = [show(i) for i in self.inputs] + [f"{k}={show(v)}" for k, v in self.attrs.items()]
        return ";".join(parts) + (f";{self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Random:
    """A test input of random values: ``scalar`` or ``integer`` in [low, high), or ``logical``.

    ``dtype`` selects the type; the values are uniformly distributed.

    Examples
    --------
    >>> case = cml.ops.Case((cml.ops.Random((1, 3, 8, 8), low=0.0),))
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = "scalar"


def integers(*shape: int, below: int = 99) -> Random:
    """Returns a test input of random integers from ``-below`` to ``below - 1``."""
    return Random(shape, -below, below, "integer")


def truth_values(*shape: int) -> Random:
    """Returns a test input of random truth values."""
    return Random(shape, dtype="logical")


#: an input of a test case: random values, random values of a shape, or the values
CaseInput: TypeAlias = "Random | tuple[int, ...] | Array | np.generic | float"

#: the define of a variant that naga reads as WGSL only: its SPIR-V reader lacks what that uses
WGSL_ONLY = "WGSL_ONLY"


def word(name: str, value: str) -> Defines:
    """Returns a define for a string: ``word("border", "constant")`` is ``border_is_constant``.

    Its value is 1; hyphens become underscores.
    """
    return {f"{name}_is_{_identifier(value)}": 1}


def numbers(words: Sequence[str]) -> Defines:
    """Returns a define for each string, in capitals, with its index as the value.

    For kernels that receive the string as a number at run time.
    """
    return {_identifier(text).upper(): i for i, text in enumerate(words)}


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


#: ``cost(attrs, input facts, output facts) -> Cost``
CostRule = Callable[[Attrs, "Sequence[Fact]", "Sequence[Fact]"], Cost]


def moving_cost(flops: Callable[[Attrs, Sequence[Fact], Sequence[Fact]], float]) -> CostRule:
    """Returns a cost function that moves every tensor once and has these ``flops``."""
    return lambda attrs, inputs, outputs: Cost.moving(
        flops(attrs, inputs, outputs), inputs, outputs
    )


def sampling_cost(flops_per_tap: float, taps: Callable[[Attrs, int], int]) -> CostRule:
    """Returns the cost function of an operator that reads ``taps`` values for every result.

    They are of the first input; others are read whole. ``taps`` is a function of the attributes
    and the number of spatial axes.
    """

    def cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
        count = taps(attrs, inputs[0].rank - 2) * outputs[0].size
        other_bytes = sum(f.nbytes for f in inputs[1:])
        read = min(4.0 * count, inputs[0].nbytes) + other_bytes
        return Cost(flops_per_tap * count, read, outputs[0].nbytes)

    return cost


def elementwise_cost(flops_per_element: float) -> CostRule:
    """Returns a cost function: FLOPs per written element, and every tensor moved once."""
    return moving_cost(
        lambda attrs, inputs, outputs: flops_per_element * sum(f.size for f in outputs)
    )


def selection_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of an operator that reads as many bytes as it writes, with no FLOPs."""
    return Cost.moving(0, outputs, outputs)


def gathered_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of an operator that reads elements of its first operand by its second.

    It reads as many elements as it writes, and computes nothing.
    """
    return Cost.moving(0, [inputs[1], *outputs], outputs)


def same_as(position: int) -> Infer:
    """Returns the shape rule of an operator whose result is like its input at ``position``.

    Type and shape are the same.

    Examples
    --------
    >>> infer = cml.ops.same_as(0)
    >>> infer(cml.ops.Attrs(), cml.ops.Fact("scalar", (1, 4))).shape
    (1, 4)
    """

    def infer(attrs: Attrs, *facts: Fact) -> Fact:
        return facts[position]

    return infer


def infer_missing(attrs: Attrs, *facts: Fact) -> Fact:
    """A placeholder for the shape rule of an operator with an expression; never called."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class IntegerFact(Fact):
    """The fact of a tensor of an integer network, whose elements are in ``low`` to ``high``."""

    low: int = 0
    high: int = 0


# --- traits: properties that graph passes use ---------------------------------------------------
#
# A pass queries a trait, never a name: an operator that a game has put in the place of one of the
# engine's has none of its traits.

#: a range of rows of a tensor: the first, and one past the last
Span = tuple[int, int]
#: the axes of a transpose: axis d of the result is axis ``order[d]`` of the operand
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The trait that one tensor of the node is the concatenation of the others along an axis.

    If ``joined`` is True, the result is the whole and the operands are the parts; otherwise the
    operand is the whole. ``place(attrs, fact of the whole, its layout)`` returns the axis and
    the start of the first part in 32-bit words; None if the parts are not contiguous in memory.
    """

    joined: bool
    place: Callable[[Attrs, Fact, str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class OperandRows:
    """The rows of the operands that an operator needs to compute some rows of its result.

    ``inputs`` has the rows of each operand (None: all of it), ``attrs`` the attributes to use
    for this computation, and ``rows`` the rows that it gives, which include the requested ones.
    """

    inputs: tuple[Span | None, ...]
    attrs: Attrs
    rows: Span


@dataclass(frozen=True, slots=True)
class RowMapping:
    """A mapping from rows of a result, along ``axis``, to the operand rows that they need.

    ``need(begin, end)`` is called with ranges that begin and end at multiples of ``step`` or at
    the end of the axis. The rows computed from them are bit-identical to those of the whole
    operator.
    """

    axis: int
    need: Callable[[int, int], OperandRows]
    step: int = 1


#: a function of attributes, operands' facts and axis of the rows; None: no rule
RowsOf = Callable[[Attrs, Sequence[Fact], int], RowMapping | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an operator that passes use. None or False means that it lacks the property.

    Parameters
    ----------
    before_transpose : ``before_transpose(attrs, order)`` returns the operator's attributes after
        the transpose of all its operands is moved to its result.
    parts : the tensors that may be views of one another.
    scaled_weights : ``scaled_weights(attrs, facts, weights, scale)`` returns the second operand
        that makes the result ``scale`` times as large, with one number for each index of axis 1.
        The third operand is a bias.
    summed_axis : ``summed_axis(attrs, shape)`` returns the axis of the second operand, which has
        this shape, along which the products of a result are added.
    matrix_in_half : ``matrix_in_half(node, facts)`` returns True if the second operand, a constant,
        may be stored in 16 bits.
    filter_in_half : ``filter_in_half(node, layouts)`` returns True if the operator's kernels pack
        the second operand, a constant, in 16 bits.
    reads_sums : the first operand contains sums, as floats or as integers.
    quantizes_input : it quantizes an input to words; the caller may provide the words instead.
    is_integer : it computes integers, which 16-bit floats cannot represent.
    is_sum : it adds products of its operands. Applied to their absolute values, it returns the sum
        of the terms' absolute values.
    rows : ``rows(attrs, facts, axis)`` returns the rows of the operands, along that axis, that
        some rows of the results depend on; None if there is no such relation.
    """

    before_transpose: Callable[[Attrs, Order], Attrs] | None = None
    parts: Parts | None = None
    scaled_weights: Callable[[Attrs, Sequence[Fact], Array, Array], Array] | None = None
    summed_axis: Callable[[Attrs, tuple[int, ...]], int] | None = None
    matrix_in_half: Callable[[Node, Mapping[str, Fact]], bool] | None = None
    filter_in_half: Callable[[Node, Mapping[str, str]], bool] | None = None
    reads_sums: bool = False
    quantizes_input: bool = False
    is_integer: bool = False
    is_sum: bool = False
    rows: RowsOf | None = None


NO_TRAITS = Traits()


def transposed_axis(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes with ``axis`` renumbered for transposed operands."""
    return attrs.with_(axis=order[int(attrs["axis"])])


def transposed_axes(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes with all ``axes`` renumbered for transposed operands."""
    return attrs.with_(axes=[order[int(axis)] for axis in attrs["axes"]])


def along_axis(attrs: Attrs, whole: Fact, layout: str) -> tuple[int, int]:
    """Returns the attribute ``axis`` and 0: the parts are consecutive along it from its start.

    A function for ``Parts.place``.
    """
    return int(attrs["axis"]), 0


@dataclass(frozen=True)
class OpSpec:
    """The complete declaration of one operator.

    Parameters
    ----------
    name : as in NNEF text.
    infer : ``infer(attrs, *facts)`` returns the results' facts and raises :class:`ShapeError`
        (without a source: the caller knows the line) if the inputs do not fit. Omitted with
        ``expression``.
    cpu : ``cpu(attrs, *arrays)`` returns the results in NumPy; the definition that the GPU is
        checked against. ``None`` = GPU only, which ``cml validate`` reports.
    kernel : the GPU kernel; ``None`` = the operator is an alias (reshape) or CPU only: a GPU
        session calls ``cpu`` for it, between its kernels.
    cost : ``cost(attrs, input facts, output facts) -> Cost``.
    cases : tests, see :class:`Case`.
    tolerance : the allowed difference between GPU and CPU: a :class:`Tolerance`, or a number for
        both its relative and its absolute part. By default it follows from the functions that a
        game's kernel or expression calls.
    alias : the result is the first input's memory with another shape; no kernel runs.
    signature : an NNEF fragment declaration, ``"fragment cross(a: tensor<scalar>, …) -> (…);"``.
        Models then need not declare the operator, and its kernel uses these names.
    doc : a sentence or two that say what it computes, for ``cml ops NAME``. Those of the engine's
        operators are the comments above their declarations in ``cml_engine/nnef/*.nnef``.
    custom : True if it is not an operator of NNEF.
    folder : the base of relative kernel paths; :func:`register` sets it for a game's operators.
    prepare : ``prepare(attrs, facts, constants, scratch)`` returns a function that a CPU session
        calls for a node instead of ``cpu``, or ``None`` to use ``cpu``.
    expression : the computation of each element, in place of ``infer``, ``cpu`` and ``kernel``:
        ``"x < 0 ? {alpha} * x : x"``.
    exact : it computes integers from integers without rounding, so that it may be part of an
        integer network (docs/integer.md). It receives words, not the real numbers they represent.
    bounds : ``bounds(attrs, *facts)`` returns the smallest and the largest integer among the
        results of an exact operator, from :class:`IntegerFact`. Omitted if every result is one of
        the words that it receives.
    formula : the elementwise formula, if there is one; passes fuse it into other kernels.
    traits : further properties that passes use; empty for a game's operator.

    Examples
    --------
    >>> double = cml.OpSpec(
    ...     name="double",
    ...     signature="fragment double(x: tensor<scalar>) -> (y: tensor<scalar>);",
    ...     infer=cml.ops.same_as(0),
    ...     cpu=lambda attrs, x: 2 * x,
    ... )
    """

    name: str
    infer: Infer = infer_missing
    cpu: Cpu | None = None
    kernel: Kernel | None = None
    cost: CostRule = elementwise_cost(1)
    cases: Sequence[Case] = ()
    tolerance: Tolerance | float | None = None
    alias: bool = False
    signature: str = ""
    custom: bool = False
    folder: Path | None = None
    prepare: Prepare | None = None
    expression: str = ""
    exact: bool = False
    bounds: Callable[..., tuple[int, int]] | None = None
    formula: Formula | None = None
    traits: Traits = NO_TRAITS
    doc: str = ""

    @property
    def allowed_error(self) -> Tolerance:
        """The tolerance as an object, also if a number or nothing is declared."""
        if isinstance(self.tolerance, Tolerance):
            return self.tolerance
        return ROUNDING if self.tolerance is None else Tolerance(self.tolerance, self.tolerance)

    @property
    def is_custom(self) -> bool:
        """True if a game registered the operator, not this package."""
        return self.folder is not None

    @property
    def is_cpu_only(self) -> bool:
        """True if the operator has no kernel and needs one: a GPU session computes it in NumPy."""
        return self.kernel is None and not self.alias
