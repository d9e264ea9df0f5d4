"""Checks a game's own operator at registration, so that mistakes show before any frame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from math import inf, prod
from pathlib import Path
from typing import get_args

from cml_engine.errors import CmlError, OperatorError, ShapeError, Source
from cml_engine.errors.arguments import check_flag, check_text
from cml_engine.ir.graph import Attrs, Fact, is_whole
from cml_engine.nnef.expansion.signatures import (
    STDLIB,
    Signature,
    declared_signature,
    operator_signatures,
)
from cml_engine.ops.declaration.spec import (
    EXACT,
    GROUP,
    NO_TRAITS,
    Case,
    Half,
    Infer,
    Kernel,
    OpSpec,
    Tolerance,
    infer_missing,
)
from cml_engine.ops.declaration.tolerances import called_functions, tolerance_of_calls
from cml_engine.ops.kernel_files import kernel_file

_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAM = re.compile(r"\w+:[uif]\d*")
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LINE_COMMENT = re.compile(r"//[^\n]*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ENTRY = re.compile(r"\bvoid\s+kernel\s*\(([^)]*)\)")
#: the dimensions of threads by the type of the entry's arguments
_ENTRY_DIMS = {"uint": 1, "uint2": 2, "uint3": 3}
_LAYOUTS = ("plain", "same", "copies", "each", "blocks", "joins", "any")
_EPILOGUES = ("none", "places", "columns", "channels")
#: the most threads that any device of WebGPU's lets a workgroup have
_MAX_GROUP = 1024
#: suffixes of the names that a kernel has for a tensor ``a`` besides ``a``: ``a_size``, …
ACCESSORS = (
    "size", "rank", "shape", "stride", "coord", "type", "count", "load", "channels", "in_blocks"
)  # fmt: skip
#: words of HLSL that a model may well call a tensor or an attribute
HLSL_WORDS = frozenset(
    "bool break buffer case cbuffer class const continue default discard do double else enum "
    "export extern false float for groupshared half if in inline inout int interface kernel line "
    "linear main matrix namespace out packoffset pass pixelfragment point precise return sampler "
    "sample shared snorm static string struct switch technique template texture this thread true "
    "triangle typedef uint uniform unorm vector vertexfragment void volatile while".split(" ")
)


def check_spec(spec: OpSpec, file: Path | None) -> OpSpec:
    """Returns the declaration with absolute paths and a complete signature.

    ``file`` is the declaring file, if it is known. Raises :class:`OperatorError` if the
    declaration is invalid.
    """
    if not isinstance(spec, OpSpec):
        raise OperatorError(f"register wants a cml.OpSpec, got {type(spec).__name__}")
    if not _NAME.fullmatch(spec.name):
        raise OperatorError(f"operator '{spec.name}': the name is not an identifier")
    check_text(spec.signature, f"the signature of operator '{spec.name}'")
    check_flag(spec.exact, f"exact of operator '{spec.name}'")
    source_file = file if file and file.is_file() else None
    folder = source_file.resolve().parent if source_file else Path.cwd()
    spec = replace(spec, custom=True, folder=folder, signature=_complete(spec.signature))
    _check_functions(spec)
    spec = _exactly(spec)
    _check_names(spec)
    if spec.kernel is None:
        return spec
    kernel = located(spec.kernel, spec, source_file)
    stated: object = kernel.alternatives
    if not isinstance(stated, list | tuple) or not all(isinstance(k, Kernel) for k in stated):
        raise fault(spec, f"its kernel's alternatives are {stated!r}; wanted a list of cml.Kernel")
    alternatives = tuple(located(k, spec, source_file) for k in kernel.alternatives)
    kernel = replace(kernel, alternatives=alternatives)
    for candidate in (kernel, *alternatives):
        _check_kernel(candidate, spec)
    _check_alternatives(kernel, spec)
    tolerance = spec.tolerance
    if tolerance is None:
        texts = (_with_own_includes(k, spec) for k in (kernel, *alternatives))
        functions = (called_functions(_without_comments(text)) for text in texts)
        tolerance = tolerance_of_calls(chain.from_iterable(functions))
    return replace(spec, kernel=kernel, tolerance=tolerance)


def _check_alternatives(kernel: Kernel, spec: OpSpec) -> None:
    """Raises :class:`OperatorError` if the alternatives of a kernel cannot stand in for it."""
    labels = [candidate.label for candidate in (kernel, *kernel.alternatives)]
    if len({*labels}) < len(labels):
        raise fault(
            spec, f"its kernels are called {', '.join(labels)}; give each a name of its own"
        )
    for alternative in kernel.alternatives:
        if alternative.alternatives:
            raise fault(
                spec, f"its kernel '{alternative.label}' is an alternative and has alternatives"
            )
        for name, default in (("layouts", "plain"), ("half", "none"), ("in_place", "")):
            first, stated = getattr(kernel, name), getattr(alternative, name)
            if stated not in (first, default):
                raise fault(
                    spec,
                    f"its kernel '{alternative.label}' states {name} {stated!r}; wanted {first!r}, "
                    "as its first kernel, or nothing",
                )
        if alternative.epilogues != kernel.epilogues:
            raise fault(spec, "its kernels state different epilogues; make them equal")


def _exactly(spec: OpSpec) -> OpSpec:
    """Returns the declaration, with the tolerance ``EXACT`` if it is of an exact operator.

    Raises :class:`OperatorError` if an exact operator lacks CPU or GPU code: both are compared
    bit by bit.
    """
    if not spec.exact:
        if spec.bounds is not None:
            raise OperatorError(f"operator '{spec.name}': bounds is for exact=True")
        return spec
    if not spec.expression and (spec.cpu is None or spec.kernel is None):
        lacking = "cpu" if spec.cpu is None else "kernel"
        raise OperatorError(
            f"operator '{spec.name}': exact=True wants a cpu function and a kernel, which give the "
            f"same bits; it has no {lacking}"
        )
    return replace(spec, tolerance=EXACT)


def located(kernel: Kernel, spec: OpSpec, source_file: Path | None = None) -> Kernel:
    """Returns the kernel with an absolute path, or unchanged if it is one of the engine's files.

    A relative path starts at the folder of the file that registered the operator. ``source_file``
    is the file of an inline source. Raises :class:`OperatorError` if there is no such file.
    """
    if not isinstance(kernel.path, str | Path):
        raise fault(spec, f"its kernel's path is {kernel.path!r}; wanted a path")
    if kernel.source:
        known_file = source_file if source_file and source_file.is_file() else None
        return replace(kernel, path=known_file or kernel.path or f"{spec.name}.hlsl")
    path = Path(kernel.path)
    folder = spec.folder or Path.cwd()
    if (folder / path).is_file():
        return replace(kernel, path=folder / path)
    if kernel_file(path):
        return kernel
    raise fault(spec, f"its kernel '{path}' is not in {folder}; a relative path starts there")


def signature_of(spec: OpSpec) -> Signature | None:
    """Returns the operator's signature: its own, the standard's or the extensions'.

    Returns None if none has one.
    """
    if spec.signature:
        return _parse_signature(spec.signature, spec.name)
    return operator_signatures().get(spec.name)


def infer_typed(spec: OpSpec, infer: Infer, attrs: Attrs, *facts: Fact) -> Fact | Sequence[Fact]:
    """Returns the results' facts by a shape rule, after a check of the operands' number and types.

    Raises :class:`ShapeError` if they are not those of the signature, which shape rules therefore
    do not repeat. An operator without a signature is not checked.
    """
    signature = signature_of(spec)
    tensors = signature.tensors if signature else ()
    # a node of an integer network has constants of integers
    if signature and not attrs.get("exact") and all(p.type.kind == "tensor" for p in tensors):
        if len(facts) != len(tensors):
            raise ShapeError(f"wanted {len(tensors)} operands, got {len(facts)}")
        generic = next(
            (f.dtype for p, f in zip(tensors, facts, strict=True) if p.type.is_generic), ""
        )
        for param, fact in zip(tensors, facts, strict=True):
            expected = generic if param.type.is_generic else param.type.name
            if expected not in ("", fact.dtype):
                raise ShapeError(
                    f"{param.name} is {fact}, wanted tensor<{expected}>; convert it with "
                    f"cast<{expected}>(…)"
                )
    return infer(attrs, *facts)


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of a game's kernel: its number of arguments, and the dimensions of each.

    One argument is the thread; two are the workgroup and the lane.
    """

    arguments: int
    dims: int


def entry_of(text: str, kernel: Kernel, spec: OpSpec) -> Entry:
    """Returns the entry ``void kernel(…)`` in HLSL text.

    Raises :class:`OperatorError` if there is none, if its arguments are not one or two of ``uint``,
    ``uint2`` or ``uint3``, or if the kernel's group has other dimensions.
    """
    match = _ENTRY.search(_without_comments(text))
    if match is None:
        raise fault(
            spec, f"its kernel '{_kernel_name(kernel)}' has no function `void kernel(uint thread)`"
        )
    subject = f"its kernel '{_kernel_name(kernel)}' has `void kernel({match[1].strip()})`"
    types = [argument.strip().partition(" ")[0] for argument in match[1].split(",")]
    if len(types) > 2 or len({*types}) > 1 or types[0] not in _ENTRY_DIMS:
        raise fault(
            spec,
            f"{subject}; wanted `void kernel(uint thread)` or `void kernel(uint group, uint "
            "lane)`, also with uint2 or uint3",
        )
    dims = _ENTRY_DIMS[types[0]]
    if len(kernel.group_shape) != dims:
        group = f"({', '.join(['8'] * dims)})" if dims > 1 else GROUP
        raise fault(spec, f"{subject}, but its group is {kernel.group}; write group={group}")
    return Entry(len(types), dims)


def fault(spec: OpSpec, problem: str, source: Source | None = None) -> OperatorError:
    """Returns (does not raise) an error whose message names the operator."""
    return OperatorError(f"operator '{spec.name}': {problem}", source)


def _complete(signature: str) -> str:
    """Returns the signature's text with a final semicolon; an empty text stays empty."""
    text = signature.strip()
    return f"{text};" if text and text[-1] not in ";}" else text


@cache
def _parse_signature(text: str, name: str) -> Signature:
    return declared_signature(text, f"<signature of {name}>")


def _check_functions(spec: OpSpec) -> None:
    _check_expression(spec)
    for name in ("infer", "cost"):
        if not callable(getattr(spec, name)):
            raise fault(spec, f"{name} must be a function, got {getattr(spec, name)!r}")
    if spec.cpu is not None and not callable(spec.cpu):
        raise fault(spec, f"cpu must be a function or None, got {spec.cpu!r}")
    if spec.cpu is None and spec.kernel is None and not spec.alias and not spec.expression:
        raise fault(spec, "it can run nowhere: give it a kernel, a cpu function, or both")
    if spec.kernel is not None and not isinstance(spec.kernel, Kernel):
        raise fault(spec, f"kernel must be a cml.Kernel, got {spec.kernel!r}")
    if spec.prepare is not None and not callable(spec.prepare):
        raise fault(spec, f"prepare must be a function or None, got {spec.prepare!r}")
    _check_tolerance(spec)
    if not isinstance(spec.cases, Sequence):
        raise fault(spec, f"cases must be a list, got {spec.cases!r}")
    for case in spec.cases:
        if not isinstance(case, Case):
            raise fault(spec, f"cases must be cml.ops.Case objects, got {case!r}")


def _check_expression(spec: OpSpec) -> None:
    if not isinstance(spec.expression, str):
        raise fault(spec, f"expression must be a text, got {spec.expression!r}")
    if spec.formula is not None:
        raise fault(spec, "it states a formula, which the engine makes of an expression")
    if spec.traits is not NO_TRAITS:
        raise fault(spec, "it states traits, which are for the engine's own; leave them out")
    stated = {"infer": spec.infer is not infer_missing, "kernel": spec.kernel, "alias": spec.alias}
    if not spec.expression:
        if not stated["infer"]:
            raise fault(spec, "infer must be a function: it states neither that nor an expression")
    elif conflicting := [name for name, value in stated.items() if value]:
        raise fault(
            spec, f"its {conflicting[0]} follows from its expression: leave one of them out"
        )


def _check_tolerance(spec: OpSpec) -> None:
    tolerance = spec.tolerance
    parts: tuple[object, ...] = (0.0 if tolerance is None else tolerance,)
    if isinstance(tolerance, Tolerance):
        parts = tolerance.rtol, tolerance.atol, tolerance.of_largest
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | float):
            raise fault(
                spec,
                f"its tolerance is {tolerance!r}; wanted a number such as 1e-5, or "
                "cml.ops.Tolerance(rtol=1e-5, atol=1e-6)",
            )
        if not 0 <= part < inf:
            raise fault(spec, f"its tolerance must be of finite numbers, 0 or more: {tolerance!r}")


def _check_names(spec: OpSpec) -> None:
    """Raises :class:`OperatorError` if the signature is invalid or its names cannot stand in HLSL.

    It must parse, declare this operator and agree with the standard.
    """
    if not spec.signature:
        return
    try:
        signature = _parse_signature(spec.signature, spec.name)
    except CmlError as error:
        raise fault(spec, f"its signature is not an NNEF declaration: {error}") from None
    if signature.name != spec.name:
        raise fault(spec, f"its signature declares '{signature.name}'; make the names equal")
    standard = STDLIB.signatures.get(spec.name)
    if standard is not None and not standard.fits(signature):
        raise fault(spec, f"NNEF defines it as {standard}; leave the signature out")
    if spec.kernel is None or spec.kernel.lower is not None:
        return
    names = [*signature.by_name, *(result.name for result in signature.results)]
    tensors = [p.name for p in signature.tensors] + [result.name for result in signature.results]
    generated = {f"{tensor}_{suffix}" for tensor in tensors for suffix in ACCESSORS}
    for name in names:
        if name in HLSL_WORDS:
            raise fault(spec, f"'{name}' in its signature is a word of HLSL; use another name")
        if name in generated or name == "GROUP" or name.lower().startswith("cml_"):
            raise fault(
                spec, f"'{name}' in its signature is a name that the engine generates; use another"
            )


def _check_kernel(kernel: Kernel, spec: OpSpec) -> None:
    if kernel.lower is not None and kernel.threads is not None:
        raise fault(spec, "its kernel states both threads and lower; keep one")
    for name in ("lower", "threads", "cost"):
        function = getattr(kernel, name)
        if function is not None and not callable(function):
            raise fault(spec, f"its kernel's {name} must be a function or None, got {function!r}")
    texts = [(name, str) for name in ("params", "source", "interface", "name")]
    for name, expected_type in (*texts, ("trusted", bool)):
        if not isinstance(getattr(kernel, name), expected_type):
            expected = "a text" if expected_type is str else "True or False"
            raise fault(
                spec, f"its kernel's {name} is {getattr(kernel, name)!r}; wanted {expected}"
            )
    sizes = kernel.group_shape
    if not all(is_whole(size) and size > 0 for size in sizes) or prod(sizes) > _MAX_GROUP:
        raise fault(spec, f"its kernel's group is {kernel.group}; wanted 1 to {_MAX_GROUP} threads")
    _check_defines(kernel, spec)
    for param in kernel.params.split():
        if not _PARAM.fullmatch(param):
            raise fault(spec, f"its kernel's params have '{param}'; wanted name:u, name:i3, name:f")
    _check_promises(kernel, spec)
    if kernel.lower is None:
        if kernel.params:
            raise fault(
                spec,
                "its kernel states params, which only a kernel with lower takes; shapes and "
                "attributes are there by their names",
            )
        entry_of(text_of(kernel, spec), kernel, spec)


def _check_defines(kernel: Kernel, spec: OpSpec) -> None:
    defines: object = kernel.defines
    if not isinstance(defines, Mapping):
        raise fault(spec, f"its kernel's defines are {defines!r}; wanted a dictionary by name")
    for name, value in defines.items():
        if not _NAME.fullmatch(name) or not isinstance(value, int | str) or "\n" in str(value):
            raise fault(
                spec,
                f"its kernel defines {name!r} as {value!r}; wanted an identifier, and a whole "
                "number or a text of one line",
            )


def _check_promises(kernel: Kernel, spec: OpSpec) -> None:
    """Raises :class:`OperatorError` if the kernel declares layouts, halves or epilogues wrongly.

    Passes trust these declarations, so a wrong one would give wrong results later.
    """
    allowed = (
        ("layouts", _LAYOUTS, kernel.layouts),
        ("half", get_args(Half), kernel.half),
        ("epilogues", _EPILOGUES, kernel.epilogues),
    )
    for name, options, value in allowed:
        if value not in options and not (name == "half" and callable(value)):
            listed = ", ".join(repr(option) for option in options)
            raise fault(spec, f"its kernel's {name} are {value!r}; wanted one of {listed}")
    if kernel.interface:
        raise fault(spec, "its kernel states an interface, which the engine writes; leave it out")
    if kernel.half != "none" and kernel.layouts == "plain":
        raise fault(
            spec,
            "its kernel states half, which is for feature maps in blocks of four channels, and "
            "takes none: its layouts are plain",
        )
    if kernel.in_place:
        signature = signature_of(spec)
        names = [p.name for p in signature.tensors if p.type.kind != "array"] if signature else []
        if kernel.in_place not in names:
            raise fault(
                spec,
                f"its kernel's in_place is {kernel.in_place!r}; wanted the name of an operand: "
                f"{', '.join(names) or 'its signature has none'}",
            )
    if kernel.epilogues == "none" and not kernel.in_place:
        return
    text = _without_comments(_with_own_includes(kernel, spec))
    if kernel.in_place and not _ENTRY.search(text):
        raise fault(spec, "its kernel states in_place, which wants a `void kernel(…)`")
    if kernel.epilogues == "none":
        return
    if kernel.lower is None or _ENTRY.search(text):
        raise fault(
            spec,
            "its kernel states epilogues, which `void kernel(…)` does not honour: that needs a "
            "main and a lower of its own. Leave it out",
        )
    if _is_game_file(kernel) and "cml_epilogue(" not in text:
        raise fault(
            spec,
            f"its kernel states epilogues, but '{_kernel_name(kernel)}' never calls cml_epilogue "
            "(of epilogue.hlsli), so they would be skipped. Leave them out",
        )


def _is_game_file(kernel: Kernel) -> bool:
    return bool(kernel.source) or Path(kernel.path).is_absolute()


def _with_own_includes(kernel: Kernel, spec: OpSpec) -> str:
    """Returns the HLSL text of the kernel and of all files of the game that it includes."""
    folder = spec.folder or Path.cwd()
    if Path(kernel.path).is_absolute():
        folder = Path(kernel.path).parent
    texts, pending, included = [], [text_of(kernel, spec)], set()
    while pending:
        text = pending.pop()
        texts.append(text)
        for name in _INCLUDE.findall(text):
            file = (folder / name).resolve()
            if file not in included and file.is_file():
                included.add(file)
                pending.append(file.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(texts)


def text_of(kernel: Kernel, spec: OpSpec) -> str:
    """Returns the kernel's HLSL without its includes, read from its file unless it is inline."""
    if kernel.source:
        return kernel.source
    file = kernel_file(kernel.path) or Path(kernel.path)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(spec, f"its kernel '{file}' cannot be read: {error}") from None


def _kernel_name(kernel: Kernel) -> str:
    return "source" if kernel.source else Path(kernel.path).name


def _without_comments(text: str) -> str:
    return _LINE_COMMENT.sub("", _BLOCK_COMMENT.sub("", text))
