"""Builds the texts of ``cml ops``: a table of every operator's support, or all about one operator.

The table has the operators of NNEF, of the extensions and of the game, on both backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cml_engine.errors.arguments import check_known_names
from cml_engine.nnef.expansion.evaluator import TENSOR_OPS, TENSOR_UNARY
from cml_engine.nnef.expansion.library import EXPANDED_BY_RULE
from cml_engine.nnef.expansion.signatures import (
    EXTENSIONS,
    STDLIB,
    Signature,
    operator_signatures,
)
from cml_engine.nnef.text.parser import BUILTINS
from cml_engine.nnef.text.printer import print_fragment
from cml_engine.nnef.text.syntax_tree import Binary, Fragment, Unary, called_operators, expressions
from cml_engine.ops.common.shapes import MAX_RANK
from cml_engine.ops.declaration.checks import signature_of
from cml_engine.ops.declaration.registry import load_families, registered
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.ops.declaration.variant import kernel_families

#: consumed by the reader: they become inputs, constants and state of the graph, not nodes
DECLARATIONS = ("external", "variable", "constant", "update")

#: the origins of operators, in the table's order
STANDARD, EXTENSION, CUSTOM = "NNEF 1.0.5", "extensions", "registered"


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """The support of one operator on the GPU and in NumPy.

    ``gpu`` and ``cpu`` are *native*, *expanded*, *graph* (no work at run time) or *refused*.
    ``note`` has the reason; ``origin`` is where the operator comes from.
    """

    name: str
    gpu: str
    cpu: str
    note: str = ""
    origin: str = STANDARD

    @property
    def runs(self) -> bool:
        return "refused" not in (self.gpu, self.cpu)


def operator_support() -> Iterator[OperatorSupport]:
    """Yields the support of the standard operators, the extensions, and the registered ones."""
    load_families()
    specs, fragments = registered(), {**STDLIB.fragments, **EXTENSIONS.fragments}
    table = SupportTable(specs, fragments)
    for name in fragments:
        yield table.support(name)
    for name, spec in specs.items():
        if name not in fragments:
            yield _native(name, spec, CUSTOM)


def operator_table() -> str:
    """Returns a text table of every operator's support, by origin, with a summary line."""
    rows = list(operator_support())
    lines: list[str] = []
    for origin in (STANDARD, EXTENSION, CUSTOM):
        group = [row for row in rows if row.origin == origin]
        if group:
            lines += [*([""] if lines else []), *_section(origin, group)]
    runs = sum(row.runs for row in rows)
    lines.append(f"\n{runs} of {len(rows)} operators run on both backends")
    return "\n".join(lines)


def operator_text(name: str) -> str:
    """Returns a text about one operator: signature, meaning, attributes, kernels, limits.

    Raises :class:`InputError` with similar names if there is no such operator.
    """
    rows = {row.name: row for row in operator_support()}
    check_known_names((name,), rows, "no operator is called", "cml ops")
    row, spec, (signature, fragment) = rows[name], registered().get(name), _declaration(name)
    lines = [f"{name}: {row.origin}", f"signature  {signature or 'none'}"]
    lines.append(f"meaning    {operator_doc(name)}")
    for param in signature.attrs if signature else ():
        default = "required" if param.required else f"default {param.default!r}"
        lines.append(f"attribute  {param.name}: {param.type}, {default}")
    note = f" ({row.note})" if row.note else ""
    lines.append(f"runs       {row.gpu} on the GPU, {row.cpu} on the CPU{note}")
    if spec is None:
        body = print_fragment(fragment) if fragment and fragment.body else ""
        return "\n".join([*lines, *(["expansion", body.rstrip()] if body else [])])
    lines += [f"kernel     {kernel}" for kernel in _kernels(spec)]
    return "\n".join([*lines, *(f"limits     {limit}" for limit in _limits(spec))])


def operator_doc(name: str) -> str:
    """Returns the text that says what an operator does.

    It is the operator's ``doc``, or the comment above its fragment.
    """
    spec = registered().get(name)
    if spec is not None and spec.doc:
        return spec.doc
    for library in (STDLIB, EXTENSIONS):
        if name in library.fragments and not (spec is not None and spec.is_custom):
            return library.comment_above(name)
    if spec is not None and spec.is_custom:
        return "not documented: give its cml.OpSpec a doc"
    return "made by the engine's passes; a model does not call it"


def _declaration(name: str) -> tuple[Signature | None, Fragment | None]:
    """Returns an operator's signature and fragment; None for what is not known without a model."""
    spec = registered().get(name)
    if spec is not None and spec.signature:
        return signature_of(spec), None
    signatures = operator_signatures()
    return signatures.get(name), {**STDLIB.fragments, **EXTENSIONS.fragments}.get(name)


def _kernels(spec: OpSpec) -> Iterator[str]:
    """Yields a line of text for each kernel that can compute an operator."""
    chosen = [
        (family.name, variant)
        for family in kernel_families()
        for variant in family.variants
        if any(op == spec.name for op, _ in variant.examples)
    ]
    for family, variant in chosen:
        yield f"{family} {variant.name} ({variant.kernel.path}): {variant.about}"
    if spec.formula is not None:
        yield f"elementwise, one thread per element: {spec.formula.hlsl}"
    elif spec.kernel is not None and not chosen:
        yield str(spec.kernel.path)


def _limits(spec: OpSpec) -> Iterator[str]:
    """Yields lines of text with an operator's tested ranks, its layouts and its tolerance."""
    ranks = sorted({_rank(case.inputs[0]) for case in spec.cases if case.inputs})
    if ranks:
        axes = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        yield f"tested on a first input of {axes} axes, of at most {MAX_RANK}"
    if spec.kernel is not None and spec.kernel.layouts == "plain":
        yield "GPU: row-major tensors only, so feature maps around it are converted"
    if spec.formula is not None and spec.formula.fusable:
        yield "GPU: computed behind a convolution or product at no cost where that comes before it"
    t = spec.allowed_error
    reason = f": {t.why}" if t.why else ""
    yield f"GPU and NumPy agree within {t.rtol:g} of the value and {t.atol:g}{reason}"


def _rank(value: object) -> int:
    """Returns the rank of a case's input: a shape, ``Random`` of one, or an array."""
    return len(value if isinstance(value, tuple) else getattr(value, "shape", ()))


def _section(title: str, rows: list[OperatorSupport]) -> list[str]:
    heading = f"{title}: {sum(r.runs for r in rows)} of {len(rows)} run on both backends"
    lines = [heading, f"{'operator':32s} {'GPU':9s} {'CPU':9s}"]
    return lines + [f"{r.name:32s} {r.gpu:9s} {r.cpu:9s} {r.note}".rstrip() for r in rows]


class SupportTable:
    """Finds the support of operators.

    An expansion is supported if all operators in its body are.
    """

    def __init__(self, specs: Mapping[str, OpSpec], fragments: Mapping[str, Fragment]) -> None:
        self._specs = specs
        self._fragments = fragments
        self._known: dict[str, OperatorSupport] = {}

    def support(self, name: str) -> OperatorSupport:
        if name not in self._known:
            # assume support during the search, because add_n calls itself
            self._known[name] = OperatorSupport(name, "expanded", "expanded")
            self._known[name] = self._add_function(name)
        return self._known[name]

    def _add_function(self, name: str) -> OperatorSupport:
        origin = STANDARD if name in STDLIB.fragments else EXTENSION
        fragment, spec = self._fragments.get(name), self._specs.get(name)
        if name in DECLARATIONS:
            return OperatorSupport(name, "graph", "graph", "read at load")
        if spec is not None:
            return _native(name, spec, origin)
        if name in EXPANDED_BY_RULE:
            return OperatorSupport(name, "expanded", "expanded", "into matmul, at load", origin)
        if fragment is None or fragment.body is None:
            return OperatorSupport(name, "refused", "refused", "not implemented yet", origin)
        return self._expanded(name, fragment, origin)

    def _expanded(self, name: str, fragment: Fragment, origin: str) -> OperatorSupport:
        parts = [self.support(op) for op in sorted(operators_used(fragment))]
        gpu = next((p.name for p in parts if p.gpu == "refused"), None)
        cpu = next((p.name for p in parts if p.cpu == "refused"), None)
        note = f"needs {gpu or cpu}" if gpu or cpu else "into other operators, at load"
        support = ["refused" if missing else "expanded" for missing in (gpu, cpu)]
        return OperatorSupport(name, support[0], support[1], note, origin)


def operators_used(fragment: Fragment) -> set[str]:
    """Returns the set of operators that a fragment's body may call, by name or by sign."""
    names = set(called_operators(fragment)) - set(BUILTINS)
    for item in expressions(fragment.body):
        if isinstance(item, Binary) and item.op in TENSOR_OPS:
            names.add(TENSOR_OPS[item.op])
        elif isinstance(item, Unary):
            names.add(TENSOR_UNARY[item.op])
    return names


def _native(name: str, spec: OpSpec, origin: str) -> OperatorSupport:
    if spec.alias:
        return OperatorSupport(name, "graph", "native", "an alias: no kernel runs", origin)
    gpu = "native" if spec.kernel else "refused"
    cpu = "native" if spec.cpu else "refused"
    note = "has no HLSL kernel" if not spec.kernel else "" if spec.cpu else "has no CPU function"
    return OperatorSupport(name, gpu, cpu, note, origin)


def kernel_table() -> str:
    """Returns a text with every kernel variant, its HLSL file and its description.

    Variants are grouped by family and in the order in which the family's rules try them.
    """
    lines = []
    for family in kernel_families():
        lines.append(family.name)
        lines += [f"  {v.name:12s} {v.kernel.path!s:24s} {v.about}" for v in family.variants]
    return "\n".join(lines)
