"""Formulas of elements on the GPU: one kernel, whose code is made of a chain of formulas.

Shader: ``shaders_hlsl/elementwise/elementwise.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cml_engine.ir.graph import AttrValue, Fact, Node
from cml_engine.ir.layout import HLSL_TYPE, PLAIN, STORED, VECTOR_TYPE
from cml_engine.ops.common.shapes import StridedWalk, plan_walk
from cml_engine.ops.declaration.expression import LETTERS, Formula
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import formula_of
from cml_engine.ops.declaration.spec import Defines, Dispatch, Half, Kernel, engine_kernel

KERNEL_PATH = "elementwise/elementwise.hlsl"
_GROUP = 64
#: elements (or vectors of four) per thread: a software driver saves threads; hardware waits for the
#: loads of one element after those of the other, and has other threads
_SOFTWARE_PER_THREAD, _PER_THREAD = 4, 1
#: dimensions per walk
_MAX_DIMS = 9
#: the define that has a chain's statements
CHAIN = "CHAIN"
#: tensors that one kernel reads: with its result, as many as every device of WebGPU's binds
MAX_OPERANDS = 7


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads or writes, with its fact and layout.

    It is a tensor of the node, or scratch memory.
    """

    name: str
    fact: Fact
    layout: str = PLAIN


def operands(op: Lowering, names: Sequence[str]) -> list[Operand]:
    """Returns the named tensors of the node as operands, in the same order."""
    return [Operand(name, op.fact(name), op.layout(name)) for name in names]


@dataclass(frozen=True, slots=True)
class Link:
    """One operator of a chain: its formula, its attributes' values, and its operands.

    An operand is the index of one of the kernel's tensors, or ``~i`` for the result of the chain's
    operator i.
    """

    formula: Formula
    values: tuple[float, ...]
    operands: tuple[int, ...]


def launch(
    row: Formula, values: Sequence[float], operands: Sequence[Operand], out: Operand
) -> Dispatch:
    """Returns a dispatch that applies one formula to any tensors, such as scratch memory.

    For operators that consist of several steps.
    """
    return launch_chain((Link(row, tuple(values), tuple(range(row.arity))),), operands, out)


def launch_chain(
    chain: Sequence[Link],
    operands: Sequence[Operand],
    out: Operand,
    per_thread: int = _SOFTWARE_PER_THREAD,
) -> Dispatch:
    """Returns one dispatch that computes a chain on ``operands`` into ``out``.

    Each operator rounds as in a kernel of its own, so the results are bit-identical.
    """
    steps = plan_walk([(o.fact, o.layout) for o in operands], out.fact, out.layout)
    width = 4 if _vectorises(steps) else 1
    splat = [width == 4 and strides[-1] == 0 for strides in steps.strides]
    values = [value for link in chain for value in link.values]
    return Dispatch(
        groups=-(-steps.size // (width * _GROUP * per_thread)),
        tensors=(*(o.name for o in operands), out.name),
        params=_params(values, steps, width, splat),
        defines=_chain_defines(chain, [o.fact for o in operands], out.fact)
        | _defines(operands, out, width, splat)
        | {"FLAT": int(steps.flat), "PER_THREAD": per_thread},
        kernel=_kernel(len(operands), len(values)),
    )


def lower_formula(row: Formula, op: Lowering) -> Iterator[Dispatch]:
    names = tuple(dict.fromkeys(op.node.reads)) if op.epilogues else op.in_names
    *read, out = operands(op, names + op.out_names)
    if out.fact.size:
        per_thread = _SOFTWARE_PER_THREAD if op.limits.software else _PER_THREAD
        yield launch_chain(_chain(row, op, names), read, out, per_thread)


def _chain(row: Formula, op: Lowering, names: Sequence[str]) -> list[Link]:
    """Returns the node's operator and its fused operators as a chain.

    Their operands are indices into ``names``, the tensors that the kernel reads.
    """
    if not op.epilogues:
        return [Link(row, tuple(row.values(op.attrs)), tuple(range(row.arity)))]
    links = [Link(row, tuple(row.values(op.attrs)), tuple(names.index(n) for n in op.in_names))]
    for epilogue in op.epilogues:
        tensors = [names.index(n) for n in epilogue.inputs]
        operands = epilogue.operands(tensors, [~i for i in range(len(links))])
        fused = formula_of(epilogue.op)
        assert fused is not None  # only these are joined
        links.append(Link(fused, tuple(fused.values(epilogue.attrs)), tuple(operands)))
    return links


def _vectorises(steps: StridedWalk) -> bool:
    """Returns True if a thread can compute four adjacent elements of the result at once.

    They must come from four adjacent elements, or from one element, of each operand.
    """
    return steps.extents[-1] % 4 == 0 and all(
        s[-1] == 0 or (s[-1] == 1 and all(step % 4 == 0 for step in s[:-1])) for s in steps.strides
    )


def _params(
    values: Sequence[float], steps: StridedWalk, width: int, splat: Sequence[bool]
) -> dict[str, AttrValue]:
    extents = [*steps.extents[:-1], steps.extents[-1] // width]
    # a row of one vector (blocks of four channels) needs no dimension of its own
    skip = int(extents[-1] == 1 and len(extents) > 1)
    extents = extents[: len(extents) - skip]
    stride = np.zeros((len(splat), _MAX_DIMS), np.uint32)
    for k, strides in enumerate(steps.strides):
        unit = 1 if splat[k] else width
        inner_first = [strides[-1], *(s // unit for s in strides[-2::-1])][skip:]
        stride[k, : len(inner_first)] = inner_first
    return {
        "count": steps.size // width,
        "dims": len(extents),
        "extent": extents[::-1],
        "stride": stride.ravel(),
        "attr": values or [0.0],
    }


def _chain_defines(chain: Sequence[Link], inputs: Sequence[Fact], out: Fact) -> Defines:
    """Returns the defines ``CHAIN`` and ``LAST`` of a chain's kernel."""
    kinds = [HLSL_TYPE[fact.dtype] for fact in inputs]
    statements = chain_statements(chain, kinds, HLSL_TYPE[out.dtype])
    return {CHAIN: " ".join(statements), "LAST": f"r{len(chain) - 1}"}


def chain_statements(
    chain: Sequence[Link], kinds: Sequence[str], element: str, first: int = 0
) -> list[str]:
    """Returns HLSL statements that store the result of link i of a chain in ``r<i>``.

    Operand k is ``p<k>``, of the type ``kinds[k]``; the values of attributes are ``attr(i)`` from
    ``first`` on. Values between links pass through ``cml_sealed``, because drivers fuse a product
    and a sum into one multiply-add, and simplify ``(a + b) - b`` to ``a``. All operands but the
    first use another seal, because drivers simplify ``a - a`` to 0 even if ``a`` is infinite.
    """
    statements = []
    for i, link in enumerate(chain):
        operands = []
        for j, (letter, k) in enumerate(zip(LETTERS, link.operands, strict=False)):
            hlsl_type = element if k < 0 else kinds[k]
            value = f"r{~k}" if k < 0 else f"p{k}"
            if k < 0 or k in link.operands[:j]:
                value = f"cml_sealed{'_too' if j else ''}({value})"
            operands.append(f"{hlsl_type} {letter} = {value};")
        text = link.formula.expression([f"attr({first + j})" for j in range(len(link.values))])
        statements.append(f"{element} r{i}; {{ {' '.join(operands)} r{i} = {element}({text}); }}")
        first += len(link.values)
    return statements


def _defines(inputs: Sequence[Operand], out: Operand, width: int, splat: Sequence[bool]) -> Defines:
    result = HLSL_TYPE[out.fact.dtype]
    defines: Defines = {
        "ARITY": len(inputs),
        "MAX_DIMS": _MAX_DIMS,
        "VEC": width,
        "RESULT": result,
        "OUT": f"T{len(inputs)}",
        f"T{len(inputs)}_TYPE": _stored_type(out, width),
    }
    for k, operand in enumerate(inputs):
        defines[f"VALUE{k}"] = HLSL_TYPE[operand.fact.dtype]
        defines[f"T{k}_TYPE"] = _stored_type(operand, 1 if splat[k] else width)
        defines[f"SPLAT{k}"] = int(splat[k])
    return defines


def _stored_type(tensor: Operand, width: int) -> str:
    if tensor.layout in STORED:
        return VECTOR_TYPE[tensor.layout]
    return HLSL_TYPE[tensor.fact.dtype] + ("4" if width == 4 else "")


def _half(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Returns ``"each"`` if the kernel computes four channels at once, else ``"none"``.

    It does if every operand with more than one value per channel and position is a feature map.
    """
    facts_of_node = [facts[n] for n in node.tensors]
    maps = [f for f in facts_of_node if f.rank > 2 and f.shape[1] != 1]
    is_uniform = all(f.dtype == "scalar" and f.rank == facts_of_node[-1].rank for f in maps)
    return "each" if is_uniform else "none"


def kernel_of(row: Formula) -> Kernel:
    """Returns the kernel that computes the formula as an operator of its own."""
    return replace(_kernel(row.arity, len(row.attrs)), lower=partial(lower_formula, row))


def _kernel(operands: int, attrs: int) -> Kernel:
    return engine_kernel(
        KERNEL_PATH,
        params=f"count:u dims:u extent:u{_MAX_DIMS} stride:u{operands * _MAX_DIMS} "
        f"attr:f{max(1, attrs)}",
        group=_GROUP,
        layouts="each",
        half=_half,
    )
