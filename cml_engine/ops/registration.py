"""Registers a game's own operators, after checking and completing their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from cml_engine.errors import OperatorError
from cml_engine.errors.arguments import check_path, check_text
from cml_engine.ir.graph import Array
from cml_engine.nnef.expansion.signatures import REQUIRED
from cml_engine.ops.declaration.checks import check_spec, fault, infer_typed, signature_of
from cml_engine.ops.declaration.expression import (
    LETTERS,
    ExpressionError,
    Formula,
    Term,
    evaluate,
    hlsl,
    parse,
    suggest_names,
)
from cml_engine.ops.declaration.registry import add, find_builtin, load_families
from cml_engine.ops.declaration.spec import Case, OpSpec, Tolerance, elementwise_cost
from cml_engine.ops.declaration.tolerances import sum_of, tolerance_of_calls
from cml_engine.ops.elementwise.elementwise_op import ELEMENTWISE, cases_of, cpu, infer
from cml_engine.ops.elementwise.kernels.elementwise import kernel_of

_PACKAGE = Path(__file__).parents[1]
#: the file of operators that is being loaded
_file: ContextVar[Path | None] = ContextVar("file of operators", default=None)


def register(spec: OpSpec, file: str | Path | None = None) -> OpSpec:
    """Registers an operator by its name and returns it as registered; a name may be used only once.

    Raises :class:`OperatorError` if the declaration is invalid. ``file``, usually ``__file__``,
    is the base of relative kernel paths and the file in which messages locate the lines of an
    inline kernel. The default is the operator file that is being loaded (``--ops``), otherwise
    the file that defines the operator's functions.

    Examples
    --------
    >>> spec = cml.register(
    ...     cml.OpSpec(
    ...         name="halve",
    ...         signature="fragment halve(x: tensor<scalar>) -> (y: tensor<scalar>);",
    ...         infer=cml.ops.same_as(0),
    ...         cpu=lambda attrs, x: x / 2,
    ...     )
    ... )
    >>> cml.ops.unregister("halve")
    """
    if not isinstance(spec, OpSpec):
        raise OperatorError(f"register wants a cml.OpSpec, got {spec!r}")
    check_text(spec.name, "the name of an operator")
    load_families()  # so that the engine's names are registered
    if find_builtin(spec.name) is spec:
        return add(spec)
    spec = check_spec(spec, _declaring_file(spec) if file is None else check_path(file, "file"))
    return add(expressed(spec) if spec.expression else spec)


@contextmanager
def registering(file: Path) -> Iterator[None]:
    """Makes ``file`` the base of relative kernel paths within the ``with`` block."""
    before = _file.set(file)
    try:
        yield
    finally:
        _file.reset(before)


def _declaring_file(spec: object) -> Path | None:
    """Returns the file that declares the operator, or None if it is not known.

    It is the file that is being loaded, or the one that defines one of the operator's functions.
    """
    if _file.get() is not None:
        return _file.get()
    kernel = getattr(spec, "kernel", None)
    for function in (
        *(getattr(spec, name, None) for name in ("cpu", "infer", "prepare", "cost")),
        *(getattr(kernel, name, None) for name in ("lower", "threads")),
    ):
        while isinstance(function, partial):
            function = function.func
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is not None and _PACKAGE not in (file := Path(code.co_filename)).parents:
            return file
    return None


#: the longest expression
_MAX_LETTERS = 600


@cache
def known_functions() -> Mapping[str, Formula]:
    """Returns the functions that an expression may call, by name.

    They are the engine's elementwise operators on floats without attributes.
    """
    formulas = {name: spec.formula for name, spec in ELEMENTWISE.items() if spec.formula}
    return {
        name: formula
        for name, formula in formulas.items()
        if {*formula.types, formula.result} == {"scalar"} and not formula.attrs
    }


def expressed(spec: OpSpec) -> OpSpec:
    """Returns the declaration with everything that follows from its expression.

    Raises :class:`OperatorError` if the expression is invalid.
    """
    names, attrs = _names(spec)
    letters = dict(zip(names, LETTERS, strict=False))
    try:
        if len(spec.expression) > _MAX_LETTERS:
            raise fault(spec, f"its expression has more than {_MAX_LETTERS} letters")
        term = parse(spec.expression, letters, tuple(attrs), known_functions())
        _check_calls(spec, term)
    except ExpressionError as error:
        raise fault(spec, f"its expression: {error}") from None
    if unused := [name for name in names if letters[name] not in _used(term)]:
        raise fault(spec, f"its expression does not use its operand '{unused[0]}'")
    formula = Formula(
        hlsl(term),
        _numpy(term, len(names), tuple(attrs)),
        types=("scalar",) * len(names),
        attrs=tuple(attrs),
        fusable=True,
        term=term,
    )
    return replace(
        spec,
        formula=formula,
        infer=partial(infer_typed, spec, partial(infer, formula)),
        cpu=spec.cpu or partial(cpu, formula),
        kernel=kernel_of(formula),
        cost=elementwise_cost(term.size) if spec.cost is OpSpec.cost else spec.cost,
        cases=spec.cases or _cases(formula, attrs),
        tolerance=_tolerance(term) if spec.tolerance is None else spec.tolerance,
    )


def _tolerance(term: Term) -> Tolerance:
    """Returns the default tolerance of an expression: its own roundings and those of its calls."""
    names = term.functions()
    known = [ELEMENTWISE[name].allowed_error for name in sorted(names & known_functions().keys())]
    return sum_of([tolerance_of_calls(names - known_functions().keys()), *known])


def _names(spec: OpSpec) -> tuple[tuple[str, ...], dict[str, float]]:
    """Returns the names of the operands, and the attributes with their defaults.

    Raises :class:`OperatorError` if an expression cannot have the signature.
    """
    signature = signature_of(spec)
    if signature is None:
        raise fault(spec, "an expression needs a signature, which names its operands")
    for declared_type, name in [(p.type, p.name) for p in signature.params] + [
        (result.type, result.name) for result in signature.results
    ]:
        if str(declared_type) not in ("tensor<scalar>", "scalar"):
            raise fault(
                spec,
                f"'{name}' is {declared_type}: an expression is of tensor<scalar> operands, scalar "
                "attributes and one tensor<scalar> result; write a kernel for others",
            )
    if not 1 <= len(signature.tensors) <= len(LETTERS) or len(signature.results) != 1:
        raise fault(
            spec,
            f"it takes {len(signature.tensors)} tensors and gives {len(signature.results)}; an "
            f"expression is of 1 to {len(LETTERS)} and gives one",
        )
    return tuple(p.name for p in signature.tensors), {p.name: p.default for p in signature.attrs}


def _check_calls(spec: OpSpec, term: Term) -> None:
    """Raises :class:`ExpressionError` for a call without a NumPy form.

    An operator with a ``cpu`` may have such calls.
    """
    for call in term.calls():
        if spec.cpu is None:
            suggestion = suggest_names(call.text, known_functions())
            problem = (
                f"'{call.text}' has no form in NumPy: give the operator a cpu, or {suggestion}"
            )
            raise ExpressionError(problem, spec.expression, call.at)


def _used(term: Term) -> set[str]:
    letters = {term.text} if term.kind == "operand" else set[str]()
    return letters.union(*(_used(part) for part in term.arguments))


def _numpy(term: Term, operands: int, attrs: tuple[str, ...]) -> Callable[..., object]:
    def numpy(*arguments: Array) -> object:
        values = dict(zip(attrs, arguments[operands:], strict=True))
        return evaluate(term, dict(zip(LETTERS, arguments[:operands], strict=False)), values)

    return numpy


def _cases(formula: Formula, attrs: Mapping[str, float]) -> Sequence[Case]:
    """Returns test cases of the formula; none if an attribute has no default."""
    if any(value is REQUIRED for value in attrs.values()):
        return ()
    values = {attr: (float(value),) for attr, value in attrs.items()}
    return cases_of(formula, values)
