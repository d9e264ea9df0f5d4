"""The lowering of an operator's node to dispatches.

:class:`Lowering` has the services that a kernel's ``lower`` uses. The second half generates the
HLSL interface that the kernel of a game's own operator finds by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar, cast

import numpy as np

from cml_engine.errors import DeviceError, InputError, OperatorError, ShapeError
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Attrs,
    AttrValue,
    Epilogue,
    Fact,
    Graph,
    Node,
    fact_from,
    is_whole,
)
from cml_engine.ir.layout import (
    BLOCKED,
    HLSL_TYPE,
    PLAIN,
    STORED,
    VECTOR_TYPE,
    stored_bytes,
    stored_shape,
    words,
)
from cml_engine.ir.limits import Limits
from cml_engine.nnef.expansion.signatures import Param
from cml_engine.nnef.expansion.values import kind_of as literal_kind
from cml_engine.nnef.expansion.values import leaves
from cml_engine.nnef.text.syntax_tree import FragmentResult, Type
from cml_engine.ops.common.shapes import contiguous_strides
from cml_engine.ops.declaration.checks import (
    Entry,
    entry_of,
    fault,
    located,
    signature_of,
    text_of,
)
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import GROUP, Cost, Defines, Dispatch, Kernel, OpSpec, word
from cml_engine.ops.declaration.split_bindings import FIRST_BINDING, SplitBinding, declaration

T = TypeVar("T")

#: the most iterations of all loops of one thread together. Mesa's software driver counts the
#: iterations of all loops that a thread runs, consecutive or nested, and silently ends every loop
#: after 65 535. A kernel that may need more works in several dispatches.
MAX_ITERATIONS = 60_000
#: iterations that the driver counts in addition each time an inner loop runs: measured up to 3
LOOP_ITERATIONS = 4


@dataclass
class Lowering:
    """The lowering of one node: its facts, layouts, packed weights and scratch memory.

    ``inputs`` and ``outputs`` are facts in NNEF's axis order (NCHW), for any layout.
    """

    graph: Graph
    node: Node
    limits: Limits
    layouts: dict[str, str]
    #: packed weights so far, by name; shared by the whole plan, so that equal ones are stored once
    packed: dict[str, Array]
    #: scratch tensors of this node: name -> number of 32-bit words
    scratch_words: dict[str, int] = field(default_factory=dict)
    #: the kernels that a table prefers, and the choices so far
    variants: VariantTable = NO_VARIANTS
    choices: list[Choice] = field(default_factory=list)
    #: the kernel that the caller requests for the node, with or without its tile
    requested_kernel: str = ""
    #: the number of parts in which the caller requests each tensor to be bound
    requested_parts: Mapping[str, str] = field(default_factory=dict)
    #: the kernels that the node chose at other shapes, and the constants that it packed
    earlier_choices: list[str] = field(default_factory=list)
    packed_before: Mapping[str, Array] = field(default_factory=dict)
    #: the choices so far (name, option); and the required choices, in the same order, if the node
    #: computes a part of another node
    chosen: list[tuple[str, object]] = field(default_factory=list)
    required_choices: list[tuple[str, object]] = field(default_factory=list)
    #: maps the results that take the memory of an operand to that operand
    in_place: Mapping[str, str] = field(default_factory=dict)
    #: the kernel that computes the node, of the operator's alternatives
    kernel: Kernel | None = None
    #: the operator's declaration, if it is not the one that is registered now
    declared: OpSpec | None = None
    #: the text of every kernel file that was read, by path
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> OpSpec:
        """The declaration of the node's operator."""
        return self.declared or lookup(self.node.op)

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def in_names(self) -> tuple[str, ...]:
        return self.node.inputs

    @property
    def out_names(self) -> tuple[str, ...]:
        return self.node.outputs

    @property
    def inputs(self) -> list[Fact]:
        return self.graph.facts_of(self.node.inputs)

    @property
    def outputs(self) -> list[Fact]:
        return self.graph.facts_of(self.node.outputs)

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return self.node.epilogues

    def fact(self, name: str) -> Fact:
        return self.graph.facts[name]

    def layout(self, name: str) -> str:
        """Returns the tensor's memory layout: ``"plain"`` (row-major), ``"c4"``, …."""
        return self.layouts.get(name, PLAIN)

    def is_blocked(self, name: str) -> bool:
        """Returns True if the tensor is stored in blocks of four channels."""
        return self.layout(name) in BLOCKED

    def vector_type(self, name: str) -> str:
        """Returns the HLSL type of one load from the tensor in its layout."""
        return VECTOR_TYPE[self.layout(name)]

    def constant(self, name: str) -> Array | None:
        """Returns the value of a tensor that is a constant, otherwise None."""
        return self.graph.constant(name)

    def pack(self, key: str, make: Callable[[], Array | Packing]) -> str:
        """Adds a constant with the value ``make()`` to the plan and returns its name, ``key``.

        ``key`` and the node's constants must determine the value: a value with a known key is
        reused, also at other shapes. The constant is bound like any tensor.
        """
        if self.spec.is_custom:
            self._pack_for_game(key, make)
        elif key not in self.packed:
            if (array := self.packed_before.get(key)) is None:
                value = make()
                array = value.array() if isinstance(value, Packing) else np.ascontiguousarray(value)
            self.packed[key] = array
        return key

    def _pack_for_game(self, key: str, make: Callable[[], Array | Packing]) -> None:
        """Adds a constant of a game's operator to the plan, with types of at most 32 bits.

        Raises an error if the key is the name of a tensor, or has another value in another node.
        """
        array = np.ascontiguousarray(make())
        if array.dtype.kind not in DTYPE_OF_KIND:
            raise self._fault(f"pack('{key}') wants numbers or truth values, got {array.dtype}")
        if array.dtype.itemsize > 4:
            array = array.astype(NUMPY_DTYPE[DTYPE_OF_KIND[array.dtype.kind]])
        if key in self.graph.facts:
            raise self._fault(f"pack('{key}'): the model has a tensor of that name; use another")
        if not np.array_equal(self.packed.setdefault(key, array), array):
            raise self._fault(
                f"pack('{key}') means other numbers in another node; put what they depend on into "
                "the key"
            )

    def _fault(self, problem: str) -> OperatorError:
        return fault(self.spec, f"{self.node.title}: {problem}", self.node.source)

    def text_of(self, kernel: Kernel) -> str:
        """Returns a kernel's HLSL without its includes.

        A file is read once. Lowering the node again, for a slider or at another shape, gives the
        kernel that was compiled, also after the file has changed.
        """
        if kernel.source:
            return kernel.source
        path = str(kernel.path)
        if path not in self.texts:
            self.texts[path] = text_of(kernel, self.spec)
        return self.texts[path]

    def nbytes(self, name: str) -> int:
        """Returns the size in bytes of a tensor that the node binds, also packed or scratch."""
        if name in self.scratch_words:
            return 4 * self.scratch_words[name]
        array = self.packed.get(name, self.graph.constants.get(name))
        if array is not None:
            return stored_bytes(array)
        return 4 * words(self.fact(name), self.layout(name))

    def scratch(self, words: int) -> str:
        """Allocates a temporary tensor of ``words`` 32-bit elements and returns its name.

        It lives during this node only.
        """
        if not is_whole(words) or words < 0:
            raise self._fault(f"scratch({words!r}): wanted a whole number of 32-bit words")
        name = f"{self.node.outputs[0]}.scratch{len(self.scratch_words)}"
        self.scratch_words[name] = words
        return name

    def choose(self, key: str, options: Mapping[str, T], default: str) -> T:
        """Returns the value of an option: the variant table's for ``key``, or the default.

        A kernel that the caller requested comes first. Each option must give a correct kernel.
        The key (:class:`Choice`) and the options may only depend on the node and the limits, so
        that a tuner finds them again. A network at other shapes keeps the first choices, so that
        its packed weights stay valid.
        """
        if self.required_choices:
            return cast(T, self.required_choices.pop(0)[1])
        chosen = self.earlier_choices.pop(0) if self.earlier_choices else ""
        if chosen not in options:
            chosen = self.variants.name_for(key, tuple(options), default)
        if self.requested_kernel:
            chosen = self._requested_option(options, chosen)
        requested = bool(self.requested_kernel)
        choice = Choice(self.node.title, key, tuple(options), default, chosen, requested)
        self.choices.append(choice)
        self.chosen.append((chosen, options[chosen]))
        return options[chosen]

    def _requested_option(self, options: Mapping[str, T], preferred: str) -> str:
        """Returns the name of the option that the caller requested.

        Raises :class:`InputError` if none fits. If the request names a kernel without a tile,
        the option ``preferred`` comes first.
        """
        requested = self.requested_kernel
        if requested in options:
            return requested
        fits = [o for o in (preferred, *options) if o.startswith(f"{requested} ")]
        if not fits:
            raise InputError(
                f"decide: {self.node.title} cannot have the kernel '{requested}': here it can be "
                f"{', '.join(options)}",
                self.node.source,
            )
        return fits[0]

    def launch(
        self,
        threads: int | Sequence[int],
        *,
        reads: Mapping[str, str],
        writes: Mapping[str, str],
        kernel: Kernel | None = None,
        values: Mapping[str, AttrValue] | None = None,
        defines: Mapping[str, int | str] | None = None,
        cost: Cost | None = None,
    ) -> Dispatch:
        """Returns one pass of a game's own operator, whose HLSL has a ``void kernel(uint thread)``.

        Parameters
        ----------
        threads : the number of threads, or one number for each dimension of the kernel's thread.
        reads, writes : the tensors by their names in the shader; the values are names from
            ``in_names``, ``out_names``, :meth:`scratch` or :meth:`pack`.
        kernel : an HLSL file other than the operator's own.
        values : further numbers for the shader by name, in addition to the attributes.
        defines : defines that distinguish this pass from others of the same file: ``{"PASS": 1}``.
        cost : the cost of this pass; by default in proportion to its workgroups.
        """
        kernel = kernel or self.kernel
        assert kernel is not None  # only called for an operator with a kernel
        spec = self.spec
        read, written = (
            [NamedTensor(n, t, _fact(self, t), self.layout(t)) for n, t in m.items()]
            for m in (reads, writes)
        )
        dispatch = _dispatch(
            self, spec, located(kernel, spec), threads, read, written, values or {}
        )
        return replace(dispatch, defines={**dispatch.defines, **(defines or {})}, cost=cost)

    def refuse(self, why: str) -> ShapeError:
        return ShapeError(f"{self.node.title}: {why}", self.node.source)


def for_each(
    op: Lowering,
    n: int,
    params: Mapping[str, object],
    defines: Mapping[str, int | str] | None = None,
    *,
    types: str = "",
    tensors: Sequence[str] = (),
    items: int = 1,
    writes: int = 1,
    kernel: Kernel | None = None,
    cost: Cost | None = None,
) -> Dispatch:
    """Returns a dispatch with one thread per ``items`` of ``n`` elements.

    The shader receives the number of elements as ``n``. ``tensors`` are the bound tensors, by
    default all that the node reads and writes. ``types`` lists the HLSL types of the first
    tensors if they are not floats.
    """
    typed = {f"T{i}_TYPE": name for i, name in enumerate(types.split())}
    return Dispatch(
        groups=-(-n // (items * GROUP)),
        tensors=tuple(tensors) or (*op.in_names, *op.out_names),
        params={"n": n, **params},
        defines={**(defines or {}), **typed},
        writes=writes,
        kernel=kernel,
        cost=cost,
    )


# --- the interface of a game's own kernels ------------------------------------------------------
#
# For each tensor ``a``, generated HLSL provides ``a[i]``, ``a_size``, ``a_rank``, ``a_shape(d)``,
# ``a_stride(d)``, ``a_coord(i, d)``, ``a_channels`` and ``a_type``; for each attribute its name, or
# ``name(i)`` and ``name_count`` for a list. An element of a blocked map is a float4, whatever its
# bits in memory. All numbers are parameters of a launch, so a new shape makes no new
# pipeline; only what changes the code (element types, strings, the number of tensors) makes a
# variant.

#: the number of extents that a kernel can read: the largest rank of a tensor
_DIMS = 8
#: the smallest capacity of a list attribute. It doubles as needed, so that lists of different
#: lengths mostly share a pipeline
_LIST_ROOM = 16
_MAX_LIST = 2048
_KINDS = {"integer": "i", "scalar": "f", "logical": "u"}
_READ = {"i": ("int", "{}"), "f": ("float", "{}"), "u": ("bool", "({} != 0u)")}


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor of a kernel: its ``name`` in HLSL, ``tensor`` in the graph, fact and layout."""

    name: str
    tensor: str
    fact: Fact
    layout: str = PLAIN

    @property
    def element(self) -> str:
        """The HLSL type of ``name[i]``: one number, or four channels of a blocked map."""
        return "float4" if self.layout in BLOCKED else HLSL_TYPE[self.fact.dtype]

    @property
    def seen(self) -> Fact:
        """The fact in elements: the channels of a blocked map are counted in blocks of four."""
        return Fact(self.fact.dtype, stored_shape(self.fact, self.layout))


@dataclass
class Interface:
    """The generated part of a kernel under construction.

    It has lines of HLSL, the declarations (``layout``) and values of the parameters, and the
    defines.
    """

    lines: list[str] = field(default_factory=list)
    layout: list[str] = field(default_factory=list)
    values: dict[str, AttrValue] = field(default_factory=dict)
    defines: Defines = field(default_factory=dict)

    def parameter(self, name: str, hlsl_type: str, value: AttrValue) -> str:
        """Adds a run-time parameter and returns its HLSL name, ``cml_p_`` and ``name``.

        The prefix avoids clashes with the user's names.
        """
        inner = f"cml_p_{name}"
        self.layout.append(f"{inner}:{hlsl_type}")
        self.values[inner] = value
        return inner

    def tensor(
        self,
        operand: NamedTensor,
        binding: int,
        parts: SplitBinding,
        memory: str = "",
        *,
        writable: bool,
    ) -> None:
        """Adds a tensor, bound at ``binding``; or in the ``memory`` of a tensor added before."""
        name, fact = operand.name, operand.seen
        shape = [*fact.shape, *[1] * (_DIMS - fact.rank)]
        stride = [*contiguous_strides(fact.shape), *[0] * (_DIMS - fact.rank)]
        numbers = [fact.size, fact.rank, *shape, *stride]
        numbers_name = self.parameter(name, f"u{len(numbers)}", numbers)
        channels = f"{name}_shape(1u)"
        stored = operand.element
        if operand.layout in BLOCKED:
            channels = self.parameter(f"{name}_channels", "u", operand.fact.shape[1])
            self.lines.append(f"#define {name}_in_blocks 1")
        if operand.layout in STORED:
            stored = VECTOR_TYPE[operand.layout]
            self.defines[f"{name}_STORED"] = stored
        self.lines += [
            *declaration(
                name,
                stored,
                binding,
                1 if memory else parts.count,
                parts.nbytes,
                operand.element,
                memory,
                writable,
            ),  # fmt: skip
            f"typedef {operand.element} {name}_type;",
            f"static uint {name}_size = {numbers_name}(0);",
            f"static uint {name}_rank = {numbers_name}(1);",
            f"uint {name}_shape(uint d) {{ return {numbers_name}(2u + d); }}",
            f"uint {name}_stride(uint d) {{ return {numbers_name}({2 + _DIMS}u + d); }}",
            f"uint {name}_coord(uint i, uint d) {{",
            f"    return d < {numbers_name}(1) ? i / {name}_stride(d) % {name}_shape(d) : 0u;",
            "}",
            f"static uint {name}_channels = {channels};",
        ]

    def tensor_list(self, name: str, parts: Sequence[NamedTensor]) -> None:
        """Generates ``name_load(k, i)``, element i of tensor k of a list, and ``name_count``."""
        self.lines.append(f"static const uint {name}_count = {len(parts)}u;")
        if not parts:
            return
        element = parts[0].element
        cases = " ".join(f"case {k}: return {p.name}[i];" for k, p in enumerate(parts[1:], 1))
        self.lines += [
            f"typedef {element} {name}_type;",
            f"{element} {name}_load(uint k, uint i) {{",
            f"    switch (k) {{ {cases} default: return {parts[0].name}[i]; }}",
            "}",
        ]

    def attribute(self, name: str, value: AttrValue, primitive: str) -> None:
        """Adds an attribute as a parameter; a list takes two, its items and their count.

        ``primitive`` is its NNEF primitive type. A string becomes the define ``name_is_text``.
        """
        if primitive == "string":
            self.defines |= word(name, "_".join(map(str, leaves(value))))
            return
        hlsl, read = _READ[_KINDS[primitive]]
        if not isinstance(value, list | tuple):
            inner = self.parameter(name, _KINDS[primitive], value)
            self.lines.append(f"static {hlsl} {name} = {read.format(inner)};")
            return
        flat = leaves(value)
        capacity = _LIST_ROOM
        while capacity < len(flat):
            capacity *= 2
        inner = self.parameter(name, f"{_KINDS[primitive]}{capacity}", flat or [0])
        count = self.parameter(f"{name}_count", "u", len(flat))
        self.lines += [
            f"static uint {name}_count = {count};",
            f"{hlsl} {name}(uint i) {{ return {read.format(f'{inner}(i)')}; }}",
        ]


def choose_kernel(op: Lowering, kernel: Kernel) -> tuple[Kernel, str]:
    """Returns the kernel of a node and its name; the name is "" if there are no alternatives.

    The choice is the caller's or the tuning table's, by default the cheapest kernel that accepts
    the node with the layouts of the plan.
    """
    if not kernel.alternatives:
        return kernel, ""
    spec = op.spec
    names = (*op.node.reads, *op.out_names)
    layouts = {op.layout(name) for name in names}
    costs: dict[str, float] = {}
    kernels = {candidate.label: candidate for candidate in (kernel, *kernel.alternatives)}
    for label, candidate in kernels.items():
        takes_blocks = candidate.layouts != "plain" or layouts.isdisjoint(BLOCKED)
        takes_bits = candidate.half != "none" or layouts.isdisjoint(STORED)
        cost: object = candidate.cost(op) if candidate.cost else 1.0
        if not isinstance(cost, int | float | None) or cost != cost:
            raise fault(spec, f"the cost of its kernel '{label}' is {cost!r}; wanted a number")
        takes_memory = candidate.in_place or not op.in_place
        if cost is not None and takes_blocks and takes_bits and takes_memory:
            costs[label] = cost
    if not costs:
        raise op.refuse(f"none of its kernels ({', '.join(kernels)}) accepts it")
    key = " ".join([spec.name, *(f"{op.fact(name)} {op.layout(name)}" for name in names)])
    options = {label: (kernels[label], label) for label in costs}
    return op.choose(key, options, min(costs, key=costs.__getitem__))


def whole(op: Lowering, spec: OpSpec, kernel: Kernel) -> Dispatch:
    """Returns the only dispatch of an operator whose kernel has no ``lower``.

    It has as many threads as the first result has elements, unless the kernel states their number.
    """
    reads, writes = _operands(op, spec)
    if kernel.threads is None:
        entry = entry_of(op.text_of(kernel), kernel, spec)
        threads: object = _threads_of(writes[0].seen, entry.dims)
    else:
        threads = kernel.threads(op.attrs, *(operand.seen for operand in reads))
    return _dispatch(op, spec, kernel, threads, reads, writes, {})


def _threads_of(fact: Fact, dims: int) -> int | tuple[int, ...]:
    """Returns the number of threads for one thread per element of a result.

    Of several dimensions the first ones are the result's innermost axes, and the last has the rest.
    """
    inner = fact.shape[::-1][: dims - 1]
    inner += (1,) * (dims - 1 - len(inner))
    return (*inner, fact.size // max(prod(inner), 1)) if dims > 1 else fact.size


def _dispatch(
    op: Lowering,
    spec: OpSpec,
    kernel: Kernel,
    threads: object,
    reads: Sequence[NamedTensor],
    writes: Sequence[NamedTensor],
    values: Mapping[str, AttrValue],
) -> Dispatch:
    text = op.text_of(kernel)
    entry = entry_of(text, kernel, spec)
    group = kernel.group_shape
    interface = Interface()
    groups = _count_through(interface, group, _checked_threads(threads, entry, spec))
    operands = [*reads, *writes]
    shared = {op.in_place[o.tensor]: o.name for o in writes if o.tensor in op.in_place}
    bound_operands = [*(o for o in reads if o.tensor not in shared), *writes]
    binding = FIRST_BINDING
    for operand in bound_operands:
        bound = split_binding(op, operand.tensor)
        if bound.count > 1:
            check_atomics(op, text, operand.name, operand.tensor)
        interface.tensor(operand, binding, bound, writable=operand in writes)
        binding += bound.count
    for operand in reads:
        if operand.tensor in shared:
            bound = split_binding(op, operand.tensor)
            interface.tensor(operand, 0, bound, shared[operand.tensor], writable=False)
    for name, parts in _lists(spec, operands).items():
        interface.tensor_list(name, parts)
    for name, value in {**op.attrs, **values}.items():
        if value is not None:
            interface.attribute(name, value, kind_of(spec, name, value))
    interface.lines += _main(entry, group)
    _check_room(interface, spec)
    return Dispatch(
        groups=groups,
        tensors=tuple(operand.tensor for operand in bound_operands),
        params=interface.values,
        defines={"GROUP": prod(group), **interface.defines},
        writes=len(writes),
        kernel=replace(
            kernel,
            source=text,
            params=" ".join(interface.layout),
            interface="\n".join(interface.lines),
        ),
    )


def _checked_threads(threads: object, entry: Entry, spec: OpSpec) -> tuple[int, ...]:
    """Returns the number of threads along each dimension of the kernel's entry.

    Raises :class:`OperatorError` if ``threads`` is anything else.
    """
    counts = tuple(threads) if isinstance(threads, list | tuple) else (threads,)
    wrong = any(isinstance(n, bool) or n != int(n) or n < 0 for n in counts)
    if wrong or len(counts) != entry.dims:
        expected = "a whole number" if entry.dims == 1 else f"{entry.dims} whole numbers"
        raise fault(spec, f"its threads function gave {threads!r}; wanted {expected}")
    return tuple(map(int, counts))


def _count_through(interface: Interface, group: Sequence[int], threads: Sequence[int]) -> int:
    """Adds the parameters that say which threads exist, and returns the number of workgroups.

    Workgroups have one linear index, the first dimension fastest, so that any range is a slice.
    """
    groups = [-(-count // size) for count, size in zip(threads, group, strict=True)]
    if len(threads) == 1:
        interface.parameter("cml_threads", "u", threads[0])
        interface.lines.append("static uint CML_THREADS = cml_p_cml_threads;")
        return groups[0]
    dims = len(threads)
    interface.parameter("cml_threads", f"u{dims}", list(threads))
    interface.parameter("cml_groups", f"u{dims}", groups)
    listed = ", ".join(f"cml_p_cml_threads({d})" for d in range(dims))
    interface.lines.append(f"static uint{dims} CML_THREADS = uint{dims}({listed});")
    return prod(groups)


def _main(entry: Entry, group: Sequence[int]) -> list[str]:
    """Returns the HLSL lines of the entry point, which calls the user's function ``kernel``.

    With one argument it is called for the requested threads only. With two it is called for all
    threads of a workgroup, so that they can wait for each other.
    """
    dims, thread = entry.dims, "cml_group * GROUP + cml_lane"
    number, lane, inside = "cml_group", "cml_lane", "cml_thread < CML_THREADS"
    if dims > 1:
        number = _unravelled(number, [f"cml_p_cml_groups({d})" for d in range(dims)])
        lane = _unravelled(lane, [f"{size}u" for size in group])
        thread = f"{number} * uint{dims}({', '.join(map(str, group))}) + {lane}"
        inside = f"all({inside})"
    call = f"if ({inside}) {{ kernel(cml_thread); }}"
    if entry.arguments == 2:
        call = f"kernel({number}, {lane});"
    return [
        "[numthreads(GROUP, 1, 1)]",
        "void main(uint3 cml_gid : SV_GroupID, uint cml_lane : SV_GroupIndex) {",
        "    uint cml_group = CML_GROUP(cml_gid);",
        "    if (!CML_EXISTS(cml_group)) { return; }",
        f"    uint{dims if dims > 1 else ''} cml_thread = {thread};",
        f"    {call}",
        "}",
    ]


def _unravelled(index: str, extents: Sequence[str]) -> str:
    """Returns the HLSL of the coordinates of a linear index, the first extent fastest."""
    remaining, coordinates = index, list[str]()
    for extent in extents[:-1]:
        coordinates.append(f"{remaining} % {extent}")
        remaining = f"{remaining} / {extent}"
    return f"uint{len(extents)}({', '.join([*coordinates, remaining])})"


def _operands(op: Lowering, spec: OpSpec) -> tuple[list[NamedTensor], list[NamedTensor]]:
    """Returns the node's inputs and its results, each under its name in the signature."""
    signature = signature_of(spec)
    inputs = _named(signature.tensors if signature else None, op.in_names, "in", spec)
    outputs = _named(signature.results if signature else None, op.out_names, "out", spec)
    return (
        [NamedTensor(name, tensor, op.fact(tensor), op.layout(tensor)) for name, tensor in inputs],
        [NamedTensor(name, tensor, op.fact(tensor), op.layout(tensor)) for name, tensor in outputs],
    )


def _named(
    declared: Sequence[Param | FragmentResult] | None,
    tensors: Sequence[str],
    prefix: str,
    spec: OpSpec,
) -> list[tuple[str, str]]:
    """Returns pairs of an HLSL name and a tensor of the graph, in the order of the tensors.

    The HLSL names are the declared names; ``name0``, ``name1``, … for a list of tensors; and
    ``in0``, ``out0``, … (by ``prefix``) without a declaration.
    """
    if declared is None:
        return [(f"{prefix}{i}", tensor) for i, tensor in enumerate(tensors)]
    lists = [param.name for param in declared if param.type.kind == "array"]
    if len(lists) > 1:
        raise fault(spec, f"it takes several lists of tensors ({', '.join(lists)}): use lower")
    length = len(tensors) - len(declared) + 1
    names: list[str] = []
    for param in declared:
        names += (
            [f"{param.name}{k}" for k in range(length)] if param.name in lists else [param.name]
        )
    return list(zip(names, tensors, strict=True))


def in_place_operand(node: Node) -> str | None:
    """Returns the operand whose memory the node's first result may take; None if there is none."""
    spec = lookup(node.op)
    signature = signature_of(spec)
    if spec.kernel is None or not spec.kernel.in_place or signature is None:
        return None
    return dict(_named(signature.tensors, node.inputs, "in", spec)).get(spec.kernel.in_place)


def _lists(spec: OpSpec, operands: Sequence[NamedTensor]) -> dict[str, list[NamedTensor]]:
    """Returns the operands of each declared list of input tensors, by the list's name."""
    signature = signature_of(spec)
    return {
        param.name: [o for o in operands if re.fullmatch(rf"{param.name}\d+", o.name)]
        for param in (signature.tensors if signature else ())
        if param.type.kind == "array"
    }


def kind_of(spec: OpSpec, name: str, value: AttrValue) -> str:
    """Returns the NNEF primitive type of an attribute or of its elements.

    It comes from the signature, or else from the value.
    """
    signature = signature_of(spec)
    param = signature.by_name.get(name) if signature else None
    if param is not None:
        types = set(_primitives(param.type))
        if types and "?" not in types:
            return _widest(types)
    return _widest({literal_kind(leaf) for leaf in leaves(value)})


def _primitives(declared_type: Type) -> Iterable[str]:
    if declared_type.items:
        for item in declared_type.items:
            yield from _primitives(item)
    else:
        yield declared_type.name


def _widest(types: set[str]) -> str:
    for primitive in ("string", "scalar", "integer", "logical"):
        if primitive in types:
            return primitive
    return "integer"


def _fact(op: Lowering, tensor: str) -> Fact:
    """Returns the fact of a tensor that a launch binds: of the node, packed or scratch.

    Raises :class:`OperatorError` for any other name.
    """
    if tensor in op.scratch_words:
        return Fact("scalar", (op.scratch_words[tensor],))
    if tensor in op.packed:
        return fact_from(op.packed[tensor])
    if tensor not in (*op.node.reads, *op.out_names):
        raise fault(
            op.spec, f"{op.node.title}: a launch of its lower binds '{tensor}', which "
            "is no tensor of this node", op.node.source,
        )  # fmt: skip
    return op.fact(tensor)


def _check_room(interface: Interface, spec: OpSpec) -> None:
    for name, value in interface.values.items():
        if isinstance(value, list) and len(value) > _MAX_LIST:
            raise fault(
                spec,
                f"attribute '{name.removeprefix('cml_p_')}' has {len(value)} values, at most "
                f"{_MAX_LIST} travel as parameters; make it a tensor",
            )


def split_binding(op: Lowering, name: str) -> SplitBinding:
    """Returns the parts in which the tensor ``name`` is bound: as few as possible, or as requested.

    Raises :class:`InputError` if the device cannot bind it in the requested number of parts.
    """
    nbytes, requested = op.nbytes(name), op.requested_parts
    align = max(op.limits.storage_offset_alignment, 16)  # a binding begins there, between elements
    limit = max(op.limits.max_binding_bytes // align, 1) * align
    fewest = max(-(-nbytes // limit), 1)
    if name not in requested:
        return SplitBinding(fewest, nbytes if fewest == 1 else limit, nbytes, limit)
    count = int(requested[name])
    part_bytes = -(-nbytes // (count * align)) * align
    if count < fewest:
        raise InputError(
            f"decide: '{name}' cannot be bound in {count} parts: it takes {nbytes} bytes, and this "
            f"device binds at most {limit} at once: {fewest} parts or more"
        )
    if count > 1 and -(-nbytes // part_bytes) != count:
        raise InputError(
            f"decide: '{name}' cannot be bound in {count} parts: it takes {nbytes} bytes, and each "
            f"part begins at a multiple of {align}: {-(-nbytes // align)} parts or fewer"
        )
    return SplitBinding(count, nbytes if count == 1 else part_bytes, nbytes, limit)


def check_atomics(op: Lowering, source: str, hlsl: str, name: str) -> None:
    """Raises :class:`DeviceError` if the kernel uses atomic operations on ``hlsl``.

    ``hlsl`` is the tensor's name in the shader. A tensor with atomic operations cannot be bound
    in parts.
    """
    if re.search(rf"\bInterlocked\w+\s*\(\s*{hlsl}\s*\[", source):
        raise DeviceError(
            f"{op.node.title}: '{name}' cannot be bound in parts: the kernel changes it by atomic "
            f"operations. It takes {op.nbytes(name)} bytes, this device binds at most "
            f"{op.limits.max_binding_bytes} at once. Use a smaller input or another device.",
            op.node.source,
        )
