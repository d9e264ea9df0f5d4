"""Tests that Python, 32-bit arithmetic and NumPy give bit-identical results of integer
inference."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cml_engine.compiler.integer import quant_params
from cml_engine.compiler.integer.quant_params import Range
from cml_engine.errors import CmlError, ModelError, RangeError
from cml_engine.ir import integer_rule as rule
from cml_engine.ops.common import integer_arrays as arrays
from tests.reference.exact_land import int32

WORDS = st.integers(-32767, 32767)
SUMS = st.one_of(
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.integers(-300, 300),
    st.sampled_from([2**31 - 1, 1 - 2**31, 2**24, -(2**24), 65536, 65535, 0]),
)
MULTIPLIERS = st.builds(
    rule.Multiplier, st.integers(1 << 14, (1 << 15) - 1), st.integers(3, 46)
) | st.sampled_from([rule.Multiplier(0, 17), rule.Multiplier(-(2**15) + 1, 20)])
#: sums that lie halfway between two words: mantissas that are powers of two
TIES = st.builds(
    lambda whole, exponent: (2 * whole + 1, rule.Multiplier(1 << 14, exponent)),
    st.integers(-(2**20), 2**20),
    st.just(15),
)


def fits(total, by):
    return abs(total) << by.before < rule.INT_BOUND


def as_arrays(total, by, low, high):
    """Returns a sum requantized in NumPy, as an integer.

    The sum is passed in two parts that a float32 holds exactly.
    """
    upper, lower = np.float32(total >> 8), np.float32(total & 255)
    requantized = arrays.requantize_wide(upper, lower, np.float32(by.code), 256, low, high)
    return int(requantized)


def exactly(total, by, low, high):
    """Returns a sum requantized with rational numbers, as docs/integer.md defines it."""
    value = Fraction(total * by.mantissa, 2**by.exponent) + Fraction(1, 2)
    return max(low, min(high, value.numerator // value.denominator))


def in_32_bits(sum_, by, low, high):
    """Returns a sum requantized as the shaders do, with no step above 32 bits."""
    shifted = int32(sum_ << by.before)
    upper = int32((shifted >> 16) * by.mantissa)
    lower = int32((shifted & 0xFFFF) * by.mantissa) >> 16
    total = int32(int32(upper + lower) + (1 << (by.shift - rule.LEAST_SHIFT)))
    return rule.clamp(total >> (by.shift - 16), low, high)


@pytest.mark.parametrize("way", [rule.requantize, in_32_bits, as_arrays])
@given(case=st.tuples(SUMS, MULTIPLIERS) | TIES)
def test_requantize(way, case):
    total, by = case
    if fits(total, by):
        for low, high in ((-127, 127), (0, 65535), (-(2**31), 2**31)):
            assert way(total, by, low, high) == exactly(total, by, low, high)


@given(st.fractions(Fraction(1, 2**31), Fraction(4000)))
def test_a_multiplier_is_the_nearest_of_15_bits(ratio):
    for sign in (1, -1):
        found = rule.multiplier(sign * ratio)
        assert 1 << 14 <= sign * found.mantissa < 1 << 15
        assert abs(found.mantissa - sign * ratio * 2**found.exponent) <= Fraction(1, 2)
        assert np.float32(found.code) == found.code
        code = int(np.float32(found.code))
        assert (code >> 6, code & 63) == (found.mantissa, found.exponent)


def test_multipliers_at_the_ends():
    assert rule.multiplier(Fraction(0)).mantissa == 0
    assert rule.multiplier(Fraction(1, 2**60)).mantissa == 0
    # rounds up to the next power of two
    assert rule.multiplier(Fraction(65535, 2**17)) == rule.Multiplier(1 << 14, 15)
    assert rule.multiplier(Fraction(1)) == rule.Multiplier(1 << 14, 14)
    for ratio in (5000, 70_000, 10**12):
        with pytest.raises(RangeError, match="make its scale larger"):
            rule.multiplier(Fraction(ratio))
    assert issubclass(RangeError, ModelError) and issubclass(RangeError, CmlError)


@given(WORDS, WORDS, st.fractions(Fraction(1, 2**20), 50), st.fractions(-50, 50))
def test_rounded_sum_of_two_integers_is_exact(a, b, first, second):
    by = rule.pair(first, second, (32767, 32767))
    largest = 32767 * (abs(by.first) + abs(by.second)) + (1 << (by.shift - 1))
    assert largest < 2**31
    exact = Fraction(a * by.first + b * by.second, 2**by.shift) + Fraction(1, 2)
    expected = max(-127, min(127, exact.numerator // exact.denominator))
    assert rule.requantize_pair(a, b, by, -127, 127) == expected
    given_ = [np.float32(n) for n in (a, b, by.first, by.second, by.shift)]
    assert arrays.requantize_pair(*given_, -127, 127) == expected


def test_sum_out_of_range_raises_range_error():
    with pytest.raises(RangeError, match="does not fit"):
        rule.pair(Fraction(2**20), Fraction(1), (32767, 127))


@given(st.data())
def test_tables(data):
    wide = data.draw(st.booleans())
    size, largest = (1025, 32767) if wide else (256, 127)
    seed = data.draw(st.integers(0, 2**20))
    table = np.random.default_rng(seed).integers(-largest, largest + 1, size)
    span = 65536 if wide else 256
    first = data.draw(st.sampled_from([0, -span // 2]))
    word = data.draw(st.integers(first, first + span - 1))
    entries = arrays.look_up(np.array([word], np.float32), table, first)
    assert entries[0] == rule.look_up(word, [int(v) for v in table], first)
    if not wide:
        assert entries[0] == table[word - first]
    elif (word - first) % 64 == 0:
        assert entries[0] == table[(word - first) // 64]


def test_float_inputs_are_rounded_to_quantized_integers():
    values = np.array([0.25, -0.25, 0.75, 1e9, -1e9, np.nan, np.inf, -np.inf, 1e-42, -1e-42])
    words = arrays.words_of(values, np.float32(2), -127, 127)
    assert words.tolist() == [1, 0, 2, 127, -127, 0, 127, -127, 0, 0]


def read_by(part, sums, x):
    """Returns the words that a part of an exact sum reads: all bits, the upper or the lower."""
    low = (1 << sums.bits) - 1
    return {"all": x, "upper": x >> sums.bits, "lower": x & low}[part.take]


RANGES = [Range(-127, 127), Range(0, 255), Range(-32767, 32767)]


@given(st.data())
def test_no_partial_sum_passes_its_bound(data):
    """Products and partial sums stay below 2^24 for any inputs, any order of addition, and sums
    split into bytes.

    A float32 holds such integers exactly, so fused multiply-adds change no bit.
    """
    random = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    bits = data.draw(st.sampled_from([8, 16]))
    words = data.draw(st.sampled_from(RANGES))
    largest = 127 if bits == 8 else 2000
    weights = random.integers(-largest, largest + 1, (3, data.draw(st.integers(1, 16))))
    bias = [int(b) for b in random.integers(-(2**20), 2**20, 3)]
    sums = quant_params.plan_exact_sum("conv 'c'", weights, bias, words)
    x = random.integers(words.low, words.high + 1, weights.shape[1])
    x[random.random(len(x)) < 0.5] = words.high
    exact = [sum(int(w) * int(v) for w, v in zip(row, x, strict=True)) for row in weights]
    order = random.permutation(weights.shape[1])
    totals = [0, 0, 0]
    for part in sums.parts:
        taken = read_by(part, sums, x)
        for c in range(3):
            partial = part.bias[c]
            for i in order:
                product = int(part.weights[c, i]) * int(taken[i])
                partial += product
                assert abs(product) < 2**24 and abs(partial) < 2**24
            totals[c] = (totals[c] << sums.bits) + partial
    assert totals == [e + b for e, b in zip(exact, bias, strict=True)]
    assert all(abs(t) <= sums.bound for t in totals)


def test_carriers():
    words = Range(-127, 127)
    row = np.array([[127] * 1040])
    assert quant_params.plan_exact_sum("c", row, [0], words).carrier == "float32"
    assert 127 * 127 * 1041 >= 2**24
    halves = quant_params.plan_exact_sum("c", np.array([[127] * 1041]), [0], words)
    assert (halves.carrier, len(halves.parts), halves.bits) == ("int32", 2, 4)
    assert (
        quant_params.plan_exact_sum("c", np.array([[127] * 500]), [0], Range(-32767, 32767)).carrier
        == "int32"
    )


def test_shifts_beyond_the_carrier_are_refused():
    with pytest.raises(RangeError, match="shifted left by 3 bits"):
        quant_params.check_shift("conv 'c'", 2**28, 3, Range(-127, 127))
    quant_params.check_shift("conv 'c'", 2**28 - 1, 3, Range(-127, 127))


# -- denormals -------------------------------------------------------------------------------------

#: below this a float32 is denormal, and a device may take it for 0
_NORMAL = np.float32(2.0**-126)


def flushed(values):
    """Returns the values with denormals replaced by zero, as some devices do."""
    return np.where(np.abs(values) < _NORMAL, np.float32(0), values).astype(np.float32)


def flushing_words(x, inverse):
    """Returns ``arrays.words_of(x, …)`` on a device that replaces denormals by zero in every
    step."""
    steps = flushed(flushed(x) * flushed(inverse))
    below = np.floor(steps)
    return np.where(flushed(steps - below) >= 0.5, below + 1, below).clip(-127, 127)


@given(st.integers(0, 2**20), st.integers(-40, 40))
def test_denormals_cannot_matter(seed, power):
    """Replacing denormals by zero changes no result for scales from 2^-40 to 2^40.

    A denormal is negligible next to half a quantization step of these scales.
    """
    random = np.random.default_rng(seed)
    inverse = np.float32(1 / 2.0**power)
    x = (random.uniform(-2, 2, 99) * 2.0 ** random.integers(-149, 60, 99)).astype(np.float32)
    expected = arrays.words_of(x, inverse, -127, 127)
    np.testing.assert_array_equal(flushing_words(x, inverse), expected)
    numbers = arrays.numbers_of(np.arange(-32767, 32768), np.float32(2.0**power))
    np.testing.assert_array_equal(flushed(numbers), numbers)
