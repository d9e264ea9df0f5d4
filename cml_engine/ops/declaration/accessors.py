"""Generates the HLSL accessors that the kernel of a game's own operator finds by name.

For each tensor ``a``: ``a[i]``, ``a_size``, ``a_rank``, ``a_shape(d)``, ``a_stride(d)``,
``a_coord(i, d)`` and ``a_type``. For each attribute its name, or ``name(i)`` and ``name_count``
for a list. All numbers are parameters of a launch, so a new shape makes no new pipeline; only what
changes the code (element types, strings, the number of tensors) makes a variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cml_engine.errors import DeviceError
from cml_engine.ir.graph import DTYPE_OF_KIND, Array, Attrs, AttrValue, Fact, Node
from cml_engine.ir.layout import BLOCKED, HLSL_TYPE
from cml_engine.ir.limits import Limits
from cml_engine.nnef.expansion.signatures import Signature
from cml_engine.nnef.text.syntax_tree import Type
from cml_engine.ops.declaration.checks import entry_of, fault, located, signature_of, text_of
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost, Defines, Dispatch, Kernel, OpSpec, word
from cml_engine.ops.declaration.split_bindings import (
    FIRST_BINDING,
    SplitBinding,
    check_atomics,
    declaration,
    split_binding,
)

#: the number of extents that a kernel can read: the largest rank of a tensor
_DIMS = 8
#: the smallest capacity of a list attribute. It doubles as needed, so that lists of different
#: lengths mostly share a pipeline
_LIST_ROOM = 16
_MAX_LIST = 2048
_KINDS = {"integer": "i", "scalar": "f", "logical": "u"}
_READ = {"i": ("int", "{}"), "f": ("float", "{}"), "u": ("bool", "({} != 0u)")}

#: a plain attribute, or a list, tuple, or list of tuples of them
Value = Any


class KernelContext(Protocol):
    """The node, limits and tensors that a kernel's interface is generated from.

    :class:`Lowering` implements it.
    """

    node: Node
    limits: Limits
    packed: dict[str, Array]
    scratch_words: dict[str, int]
    requested_parts: Mapping[str, str]

    @property
    def attrs(self) -> Attrs: ...

    @property
    def in_names(self) -> tuple[str, ...]: ...

    @property
    def out_names(self) -> tuple[str, ...]: ...

    @property
    def inputs(self) -> list[Fact]: ...

    @property
    def outputs(self) -> list[Fact]: ...

    def fact(self, name: str) -> Fact: ...

    def layout(self, name: str) -> str: ...

    def nbytes(self, name: str) -> int: ...


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor of a kernel: its ``name`` in HLSL, ``tensor`` in the graph, and its fact."""

    name: str
    tensor: str
    fact: Fact


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

    def parameter(self, name: str, kind: str, value: Any) -> str:
        """Adds a run-time parameter and returns its HLSL name, ``cml_p_`` and ``name``.

        The prefix avoids clashes with the user's names.
        """
        inner = f"cml_p_{name}"
        self.layout.append(f"{inner}:{kind}")
        self.values[inner] = value
        return inner

    def tensor(self, operand: NamedTensor, binding: int, parts: SplitBinding) -> None:
        name, fact = operand.name, operand.fact
        shape = [*fact.shape, *[1] * (_DIMS - fact.rank)]
        stride = [*_strides(fact.shape), *[0] * (_DIMS - fact.rank)]
        numbers = [fact.size, fact.rank, *shape, *stride]
        at = self.parameter(name, f"u{len(numbers)}", numbers)
        kind = HLSL_TYPE[fact.dtype]
        self.lines += [
            *declaration(name, kind, binding, parts.count, parts.nbytes),
            f"typedef {kind} {name}_type;",
            f"static uint {name}_size = {at}(0);",
            f"static uint {name}_rank = {at}(1);",
            f"uint {name}_shape(uint d) {{ return {at}(2u + d); }}",
            f"uint {name}_stride(uint d) {{ return {at}({2 + _DIMS}u + d); }}",
            f"uint {name}_coord(uint i, uint d) {{",
            f"    return d < {at}(1) ? i / {name}_stride(d) % {name}_shape(d) : 0u;",
            "}",
        ]

    def tensor_list(self, name: str, parts: Sequence[NamedTensor]) -> None:
        """Generates ``name_load(k, i)``, element i of tensor k of a list, and ``name_count``."""
        self.lines.append(f"static const uint {name}_count = {len(parts)}u;")
        if not parts:
            return
        kind = HLSL_TYPE[parts[0].fact.dtype]
        cases = " ".join(f"case {k}: return {p.name}[i];" for k, p in enumerate(parts[1:], 1))
        self.lines += [
            f"typedef {kind} {name}_type;",
            f"{kind} {name}_load(uint k, uint i) {{",
            f"    switch (k) {{ {cases} default: return {parts[0].name}[i]; }}",
            "}",
        ]

    def attribute(self, name: str, value: Value, kind: str) -> None:
        """Adds an attribute as a parameter; a list takes two, its items and their count.

        ``kind`` is its NNEF primitive type. A string becomes the define ``name_is_text``.
        """
        if kind == "string":
            self.defines |= word(name, "_".join(map(str, _leaves(value))))
            return
        hlsl, read = _READ[_KINDS[kind]]
        if not isinstance(value, list | tuple):
            inner = self.parameter(name, _KINDS[kind], value)
            self.lines.append(f"static {hlsl} {name} = {read.format(inner)};")
            return
        flat = _leaves(value)
        room = _LIST_ROOM
        while room < len(flat):
            room *= 2
        inner = self.parameter(name, f"{_KINDS[kind]}{room}", flat or [0])
        count = self.parameter(f"{name}_count", "u", len(flat))
        self.lines += [
            f"static uint {name}_count = {count};",
            f"{hlsl} {name}(uint i) {{ return {read.format(f'{inner}(i)')}; }}",
        ]


def whole(op: KernelContext, spec: OpSpec, kernel: Kernel) -> Dispatch:
    """Returns the only dispatch of an operator whose kernel has no ``lower``.

    It has as many threads as the first result has elements, unless the kernel states their number.
    """
    if kernel.threads is None:
        threads = op.outputs[0].size
    else:
        threads = kernel.threads(op.attrs, *op.inputs)
        if isinstance(threads, bool) or threads != int(threads) or threads < 0:
            raise fault(spec, f"its threads function gave {threads!r}; wanted a whole number")
    reads, writes = _operands(op, spec)
    return _dispatch(op, spec, kernel, int(threads), reads, writes, {})


def launch(
    op: KernelContext,
    threads: int,
    reads: Mapping[str, str],
    writes: Mapping[str, str],
    kernel: Kernel | None,
    values: Mapping[str, Value],
    defines: Mapping[str, int | str],
    cost: Cost | None,
) -> Dispatch:
    """Returns the dispatch of one pass of a kernel's ``lower``; see :meth:`Lowering.launch`."""
    spec = lookup(op.node.op)
    own = kernel or spec.kernel
    assert own is not None  # only a kernel's lower comes here
    tensors = [[NamedTensor(n, t, _fact(op, t)) for n, t in m.items()] for m in (reads, writes)]
    made = _dispatch(op, spec, located(own, spec), threads, tensors[0], tensors[1], values)
    return replace(made, defines={**made.defines, **defines}, cost=cost)


def _dispatch(
    op: KernelContext,
    spec: OpSpec,
    kernel: Kernel,
    threads: int,
    reads: Sequence[NamedTensor],
    writes: Sequence[NamedTensor],
    values: Mapping[str, Value],
) -> Dispatch:
    if kernel.group > op.limits.max_group_threads:
        raise DeviceError(
            f"operator '{spec.name}' wants workgroups of {kernel.group} threads, this device "
            f"allows {op.limits.max_group_threads}",
            op.node.source,
        )
    made = Interface()
    made.parameter("threads", "u", threads)
    made.lines.append("static uint CML_THREADS = cml_p_threads;")
    operands = [*reads, *writes]
    if in_blocks := [o.tensor for o in operands if op.layout(o.tensor) in BLOCKED]:
        raise fault(
            spec,
            f"its kernel states layouts, but `void kernel(…)` reads '{in_blocks[0]}' as plain; "
            "leave them out",
            op.node.source,
        )
    text = text_of(kernel, spec)  # as it is now: a file that has changed is another kernel
    binding = FIRST_BINDING
    for operand in operands:
        bound = split_binding(op, operand.tensor)
        if bound.count > 1:
            check_atomics(op, text, operand.name, operand.tensor)
        made.tensor(operand, binding, bound)
        binding += bound.count
    for name, parts in _lists(spec, operands).items():
        made.tensor_list(name, parts)
    for name, value in {**op.attrs, **values}.items():
        if value is not None:
            made.attribute(name, value, _kind(spec, name, value))
    made.lines += _main(entry_of(text, kernel, spec))
    _check_room(made, spec)
    return Dispatch(
        groups=-(-threads // kernel.group),
        tensors=tuple(operand.tensor for operand in operands),
        params=made.values,
        defines={"GROUP": kernel.group, **made.defines},
        writes=len(writes),
        kernel=replace(
            kernel,
            source=text,
            params=" ".join(made.layout),
            interface="\n".join(made.lines),
        ),
    )


def _main(arguments: int) -> list[str]:
    """Returns the HLSL lines of the entry point, which calls the user's function ``kernel``.

    With one argument it is called for the requested threads only. With two it is called for all
    threads of a workgroup, so that they can wait for each other.
    """
    call = "if (cml_thread < CML_THREADS) { kernel(cml_thread); }"
    if arguments == 2:
        call = "kernel(cml_group, cml_lane);"
    return [
        "[numthreads(GROUP, 1, 1)]",
        "void main(uint3 cml_gid : SV_GroupID, uint cml_lane : SV_GroupIndex) {",
        "    uint cml_group = CML_GROUP(cml_gid);",
        "    if (cml_group >= cml_end) { return; }",
        "    uint cml_thread = cml_group * GROUP + cml_lane;",
        f"    {call}",
        "}",
    ]


def _operands(op: KernelContext, spec: OpSpec) -> tuple[list[NamedTensor], list[NamedTensor]]:
    """Returns the node's inputs and its results, each under its name in the signature."""
    found = signature_of(spec)
    inputs = _named(_input_types(found), op.in_names, "in", spec)
    outputs = _named(_output_types(found), op.out_names, "out", spec)
    return (
        [NamedTensor(name, tensor, op.fact(tensor)) for name, tensor in inputs],
        [NamedTensor(name, tensor, op.fact(tensor)) for name, tensor in outputs],
    )


def _input_types(found: Signature | None) -> list[tuple[str, Type]] | None:
    return None if found is None else [(param.name, param.type) for param in found.tensors]


def _output_types(found: Signature | None) -> list[tuple[str, Type]] | None:
    return None if found is None else [(result.name, result.type) for result in found.results]


def _named(
    params: Sequence[tuple[str, Type]] | None, tensors: Sequence[str], side: str, spec: OpSpec
) -> list[tuple[str, str]]:
    """Returns pairs of an HLSL name and a tensor of the graph, in the order of the tensors.

    The HLSL names are the declared names; ``name0``, ``name1``, … for a list of tensors; and
    ``in0``, ``out0``, … (by ``side``) without a declaration.
    """
    if params is None:
        return [(f"{side}{i}", tensor) for i, tensor in enumerate(tensors)]
    lists = [name for name, kind in params if kind.kind == "array"]
    if len(lists) > 1:
        raise fault(spec, f"it takes several lists of tensors ({', '.join(lists)}): use lower")
    length = len(tensors) - len(params) + 1
    names: list[str] = []
    for name, kind in params:
        names += [f"{name}{k}" for k in range(length)] if kind.kind == "array" else [name]
    return list(zip(names, tensors, strict=True))


def _lists(spec: OpSpec, operands: Sequence[NamedTensor]) -> dict[str, list[NamedTensor]]:
    """Returns the operands of each declared list of input tensors, by the list's name."""
    types = _input_types(signature_of(spec)) or []
    names = [name for name, kind in types if kind.kind == "array"]
    return {
        name: [o for o in operands if o.name.startswith(name) and o.name[len(name) :].isdigit()]
        for name in names
    }


def _kind(spec: OpSpec, name: str, value: Value) -> str:
    """Returns the NNEF primitive type of an attribute or of its elements.

    It comes from the signature, or else from the value.
    """
    found = signature_of(spec)
    param = found.by_name.get(name) if found else None
    if param is not None:
        kinds = set(_primitives(param.type))
        if kinds and "?" not in kinds:
            return _widest(kinds)
    return _widest({_kind_of(leaf) for leaf in _leaves(value)})


def _primitives(kind: Type) -> Iterable[str]:
    if kind.items:
        for item in kind.items:
            yield from _primitives(item)
    else:
        yield kind.name


def _widest(kinds: set[str]) -> str:
    for kind in ("string", "scalar", "integer", "logical"):
        if kind in kinds:
            return kind
    return "integer"


def _kind_of(value: Value) -> str:
    if isinstance(value, bool):
        return "logical"
    if isinstance(value, str):
        return "string"
    return "scalar" if isinstance(value, float) else "integer"


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides


def _fact(op: KernelContext, tensor: str) -> Fact:
    """Returns the fact of a tensor that a launch binds: of the node, packed or scratch.

    Raises :class:`OperatorError` for any other name.
    """
    if tensor in op.scratch_words:
        return Fact("scalar", (op.scratch_words[tensor],))
    if tensor in op.packed:
        array = op.packed[tensor]
        return Fact(DTYPE_OF_KIND[array.dtype.kind], array.shape)
    if tensor not in (*op.node.reads, *op.out_names):
        raise fault(
            lookup(op.node.op), f"{op.node.title}: a launch of its lower binds '{tensor}', which "
            "is no tensor of this node", op.node.source,
        )  # fmt: skip
    return op.fact(tensor)


def _check_room(made: Interface, spec: OpSpec) -> None:
    for name, value in made.values.items():
        if isinstance(value, list) and len(value) > _MAX_LIST:
            raise fault(
                spec,
                f"attribute '{name.removeprefix('cml_p_')}' has {len(value)} values, at most "
                f"{_MAX_LIST} travel as parameters; make it a tensor",
            )
