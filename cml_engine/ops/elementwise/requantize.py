"""Elementwise operators that turn sums into words by the rule of integer inference.

The rule is in docs/integer.md; words and sums are integers in floats. The compiler builds integer
networks from these operators (``cml_engine/compiler/integer/``); they do not appear in the text of
a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cml_engine.ir.graph import Array, Attrs
from cml_engine.ir.integer_rule import Multiplier
from cml_engine.ops.common import integer_arrays as arrays
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import formula_of
from cml_engine.ops.declaration.spec import EXACT, Case, Dispatch, Kernel, Traits
from cml_engine.ops.elementwise.elementwise_op import declare
from cml_engine.ops.elementwise.kernels.elementwise import lower_formula
from cml_engine.ops.movement import shuffle

_RANDOM = np.random.default_rng(17)
_WORD = {"low": -127.0, "high": 127.0}


def _integers(*shape: int, largest: int = 1 << 24) -> Array:
    """Returns random integers, as float32, whose numbers of bits are uniformly distributed.

    ``largest`` bounds their magnitude.
    """
    size = _RANDOM.integers(0, largest.bit_length(), shape)
    return np.asarray(_RANDOM.integers(-(1 << size), (1 << size) + 1), np.float32)


def _codes(*shape: int, least_exponent: int = 17) -> Array:
    mantissas = _RANDOM.integers(1 << 14, 1 << 15, shape)
    codes = mantissas * 64 + _RANDOM.integers(least_exponent, 47, shape)
    return np.asarray(codes, np.float32)


#: sums halfway between two words, and a multiplier that first shifts to the left
_TIES = np.arange(-9, 10, dtype=np.float32).reshape(1, 1, 19)
_HALF = np.float32(Multiplier(1 << 14, 15).code)
_MAPS = ((1, 8, 13, 17), (1, 8))


def _sums(is_split: bool, by_sign: bool) -> list[Case]:
    shape, channels = _MAPS
    attrs = {**({"factor": 256.0} if is_split else {}), "low": -32767.0, "high": 32767.0}
    largest = 1 << (22 if is_split else 24)
    maps = [_integers(*shape, largest=largest) for _ in range(1 + is_split)]
    codes = [_codes(*channels) for _ in range(1 + by_sign)]
    ties = [np.zeros_like(_TIES), _TIES] if is_split else [_TIES]
    return [
        Case((*maps, *codes), attrs, "per channel"),
        Case((*ties, *[_HALF] * (1 + by_sign)), attrs, "ties"),
        Case((*(m[:, :, 0, 0] for m in maps), *codes), attrs, "a matrix"),
    ]


_PAIR = (
    Case((_integers(1, 8, 13, 17, largest=32767), _integers(1, 8, 13, 17, largest=32767),
          np.float32(20001), np.float32(-31234), np.float32(14)), _WORD, "of 16 bits"),
    Case((_TIES, np.float32(1), np.float32(2), np.float32(1), np.float32(2)), _WORD, "ties"),
    Case((_TIES, _TIES, np.float32(1), np.float32(1), np.float32(1)), _WORD, "with itself"),
)  # fmt: skip
_PRODUCT = (
    Case((_integers(1, 8, 13, 17, largest=32767), _integers(1, 8, largest=32767),
          np.float32(16385 * 64 + 40)), _WORD, "of 16 bits"),
    Case((_TIES, np.float32(1), _HALF), _WORD, "ties"),
    Case((_TIES, _TIES, _HALF), _WORD, "with itself"),
)  # fmt: skip


_VALUES = (
    Case((np.array([0.25, -0.25, 0.75, 1.25, 1e9, -1e9, np.nan, np.inf, -np.inf, 1e-42, -1e-42,
                    -1e-30, 63.49, 63.51, -63.49], np.float32),), {"inverse": 2.0, **_WORD}),
    Case((_RANDOM.uniform(-70, 70, (1, 8, 13, 17)).astype(np.float32),), {"inverse": 1.7, **_WORD}),
    Case((_RANDOM.uniform(-70, 70, (2, 7, 5)).astype(np.float32),), {"inverse": 1.7, **_WORD},
         "channels that fill no block"),
    Case((np.zeros((2, 0), np.float32),), {"inverse": 1.7, **_WORD}, "empty"),
)  # fmt: skip

_NUMBERS = tuple(
    Case((_integers(*shape, largest=32767),), {"scale": 0.0123})
    for shape in ((1, 8, 13, 17), (7,), (2, 0))
)

_CODES: dict[str, tuple[Callable[..., object], Sequence[Case]]] = {
    "requantize": (arrays.requantize, _sums(False, False)),
    "requantize_signed": (arrays.requantize_by_sign, _sums(False, True)),
    "requantize_wide": (arrays.requantize_wide, _sums(True, False)),
    "requantize_wide_signed": (arrays.requantize_wide_by_sign, _sums(True, True)),
    "requantize_pair": (arrays.requantize_pair, _PAIR),
    "requantize_product": (arrays.requantize_product, _PRODUCT),
}  # fmt: skip


#: the operators whose HLSL also takes sums as integers
_SUM_OPERATORS = ("requantize", "requantize_signed")


def _in_place(
    function: Callable[..., object], names: Sequence[str], attrs: Attrs, x: Array, *operands: Array
) -> bool:
    if x.dtype != np.float32:
        return False  # blocks of others are no copies: one would be written before it is read
    function(x, *operands, *(attrs[name] for name in names), out=x)
    return True


def _row(
    name: str,
    function: Callable[..., object],
    cases: Sequence[Case],
    fusable: bool = True,
    kernel: Kernel | None = None,
) -> None:
    arity, attrs = len(cases[0].inputs), list(cases[0].attrs)
    arguments = [*"abcde"[:arity], *(f"{{{attr}}}" for attr in attrs)]
    declare(
        name,
        f"cml_{name}({', '.join(arguments)})",
        function,
        ("scalar",) * arity,
        tolerance=EXACT,
        flops=12,
        attrs=dict.fromkeys(attrs, ()),
        fusable=fusable,
        in_place=partial(_in_place, function, attrs) if name in _CODES else None,
        traits=Traits(
            is_integer=True,
            reads_sums=name in _SUM_OPERATORS,
            quantizes_input=name == "integer_words",
        ),
        custom=True,
        cases=cases,
        kernel=kernel,
    )


def _enter(op: Lowering) -> Iterator[Dispatch]:
    """Returns the dispatches that quantize an input, directly in the layout of the result.

    A plain 32-bit map in between is not needed.
    """
    if any(op.is_blocked(name) for name in (*op.in_names, *op.out_names)):
        entry = [float(op.attrs[name]) for name in ("inverse", "low", "high")]
        return shuffle.regroup(op, quantization=entry)
    formula = formula_of("integer_words")
    assert formula is not None
    return lower_formula(formula, op)


for _name, (_function, _cases) in _CODES.items():
    _row(_name, _function, _cases)
_row(
    "integer_words",
    arrays.words_of,
    _VALUES,
    fusable=False,
    kernel=replace(shuffle.KERNEL, lower=_enter, epilogues="none"),
)
_row("integer_numbers", arrays.numbers_of, _NUMBERS)
