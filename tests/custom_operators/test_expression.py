"""Tests of the expressions of elementwise operators: values, generated code and error messages."""

import random

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.errors import OperatorError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.declaration.expression import ExpressionError, evaluate, hlsl, parse, wide_hlsl
from cml_engine.ops.declaration.registry import load_families
from cml_engine.ops.elementwise.elementwise_op import ELEMENTWISE
from cml_engine.ops.registration import known_functions
from tests.fixtures.messages import raises

load_families()
pytestmark = pytest.mark.usefixtures("own_operators")
LETTERS = {"x": "a", "y": "b"}


def read(text):
    return parse(text, LETTERS, ("k",), known_functions())


def operator(expression, params="x: tensor<scalar>, k: scalar = 0.5", **more):
    signature = f"fragment soft({params}) -> (z: tensor<scalar>);"
    return cml.register(cml.OpSpec("soft", signature=signature, expression=expression, **more))


FORMS = [
    ("x + 2 * y", "(a + (2.0 * b))", "(a + (2.0 * b))"),
    ("(x + 2) * -y", "((a + 2.0) * (-b))", "((a + 2.0) * (-b))"),
    ("x - y - 1", "((a - b) - 1.0)", "((a - b) - 1.0)"),
    ("0.1 / 3", "(0.1 / 3.0)", "(0.1 / 3.0)"),
    ("1e-3 * .5", "(0.001 * 0.5)", "(0.001 * 0.5)"),
    ("x < 0 ? {k} * x : x", "((a < 0.0) ? ({k} * a) : a)",
     "select((float4(a) < float4(0.0)), float4(({k} * a)), float4(a))"),
    ("x < 0 && y > 1 || x > 2 ? 1 : 0",
     "((((a < 0.0) && (b > 1.0)) || (a > 2.0)) ? 1.0 : 0.0)",
     "select(or(and((float4(a) < float4(0.0)), (float4(b) > float4(1.0))), "
     "(float4(a) > float4(2.0))), float4(1.0), float4(0.0))"),
    ("tanh(x) * y", "(cml_tanh(a) * b)", "(cml_tanh(a) * b)"),
    ("silu(y)", "(b * cml_sigmoid(b))", "(b * cml_sigmoid(b))"),
    # functions of scalars have no float4 expression
    ("x != 0 ? x : 1", "(cml_unequal(a, 0.0) ? a : 1.0)", None),
    ("sin(x)", "cml_sin(a)", None),
    ("frac(x)", "frac(a)", None),
    # the shortest literal that gives the same float32
    ("16777217.0 * x", "(1.6777216e+07 * a)", "(1.6777216e+07 * a)"),
    ("0.30000001192092896 * x", "(0.3 * a)", "(0.3 * a)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "one", "four"), FORMS)
def test_an_expression_in_hlsl(text, one, four):
    term = read(text)
    assert (hlsl(term), wide_hlsl(term, "float4")) == (one, four)


VALUES = [
    ("x + 2 * y", lambda x, y: x + np.float32(2) * y),
    ("x - y - 1 - x / y", lambda x, y: x - y - 1 - x / y),
    ("x < 0 ? {k} * x : x", lambda x, y: np.where(x < 0, np.float32(0.5) * x, x)),
    ("x >= y ? x : y <= 0 ? 0 : y", lambda x, y: np.where(x >= y, x, np.where(y <= 0, 0, y))),
    ("x == y || x != x ? 1 : 2", lambda x, y: np.where((x == y) | np.isnan(x), 1, 2)),
    ("min(x, y)", lambda x, y: np.where(x < y, x, y)),
    ("clamp(x * y, -1, 1)", lambda x, y: np.where(np.isnan(x * y), np.nan, np.clip(x * y, -1, 1))),
    ("relu(-x) + sqr(y)", lambda x, y: np.maximum(-x, 0) + y * y),
]


@pytest.mark.parametrize(("text", "wanted"), VALUES)
def test_an_expression_in_numpy(text, wanted):
    values = np.array([-2.0, -0.5, -0.0, 0.0, 0.25, 1.0, 7.0, np.inf, -np.inf, np.nan], np.float32)
    x, y = np.meshgrid(values, values)
    with np.errstate(all="ignore"):
        got = evaluate(read(text), {"a": x, "b": y}, {"k": np.float32(0.5)})
        np.testing.assert_array_equal(np.asarray(got, np.float32), wanted(x, y).astype(np.float32))
    assert np.asarray(got).dtype in (np.float32, np.int64)


@pytest.mark.parametrize(
    "name", [name for name, spec in ELEMENTWISE.items() if spec.formula.fusable]
)
def test_fusable_operators_have_an_expression_of_four_lanes(name):
    """Every fusable operator has an expression on ``float4``, since scalar code is four times as
    long."""
    formula = ELEMENTWISE[name].formula
    assert formula.wide_expression("float4", ["k"] * len(formula.attrs)) is not None


#: expression, position of the error, message
WRONG = [
    ("x +", 4, "wanted a number, a name or '(', got the end"),
    ("x < 0 ? ) * x", 9, "wanted a number, a name or '(', got ')'"),
    ("(x + 1", 7, "wanted ')', got the end"),
    ("x ? 1 : 2", 1, "wanted a condition (a comparison), got a number"),
    ("x > 0", 3, "wanted a number, got a condition"),
    ("x < 1 ? 2", 10, "wanted ':', got the end"),
    ("x % 2", 3, "'%' is not for expressions"),
    ("x + z", 5, "'z' is no operand (x)"),
    ("x + k", 5, "attributes are written {k}"),
    ("x + {alpha}", 5, "'alpha' is no attribute (k)"),
    ("x * 1e39", 5, "1e39 has no place in 32 bits"),
    ("min(x)", 1, "min takes 2 numbers, got 1"),
    ("1 + tanhh(x)", 5, "'tanhh' has no form in NumPy: give the operator a cpu, or call tanh"),
    ("cml_sigmoid(x)", 1, "call sigmoid"),
    ("silu(silu(silu(silu(silu(silu(silu(silu(silu(x)))))))))", 16, "more than 1000 parts"),
    ("(" * 70 + "x" + ")" * 70, 65, "more than 64 parts in one another"),
]


@pytest.mark.parametrize(("text", "at", "says"), WRONG)
def test_expression_error_shows_the_position(text, at, says):
    with pytest.raises(OperatorError) as caught:
        operator(text)
    message = str(caught.value)
    assert "operator 'soft': its expression: " in message
    assert says in message
    assert f"at character {at}:\n    {text}\n    {' ' * (at - 1)}^" in message


def test_random_expression_text_parses_or_raises_with_position():
    words = [
        "x",
        "y",
        "{k}",
        "é",
        ".",
        "{",
        "1e3",
        "tanh(",
        "min(",
        "frac(",
        " ",
        *"()+-*/<>=!&|?:,",
    ]
    rng = random.Random(1)
    read_well = 0
    for _ in range(2000):
        text = "".join(rng.choices(words, k=rng.randint(1, 9)))
        try:
            term = read(text)
        except ExpressionError as error:
            assert f"\n    {text}\n" in str(error)
        else:
            assert hlsl(term) and wide_hlsl(term, "float4") != ""
            read_well += 1
    assert read_well > 20


DECLARATIONS = [
    ({"expression": "x", "params": "x: tensor<integer>"}, "'x' is tensor<integer>: an expression"),
    ({"expression": "x", "params": "x: tensor<scalar>[]"}, "'x' is tensor<scalar>[]"),
    ({"expression": "x", "params": "x: tensor<scalar>, n: integer = 1"}, "'n' is integer"),
    ({"expression": "x", "params": "x: tensor<scalar>, y: tensor<scalar>"}, "not use its operand"),
    ({"expression": "1", "params": "k: scalar = 1.0"}, "takes 0 tensors and gives 1"),
    ({"expression": "x", "infer": ops.same_as(0)}, "its infer follows from its expression"),
    ({"expression": "x", "kernel": cml.Kernel(source="void kernel(uint thread) {}")}, "its kernel"),
    ({"expression": 3}, "expression must be a text, got 3"),
    ({"expression": "x" * 601}, "more than 600 letters"),
    ({"expression": "", "cpu": np.abs}, "it states neither that nor an expression"),
]


@pytest.mark.parametrize(("given", "says"), DECLARATIONS)
def test_declaration_contradicting_its_expression_is_refused(given, says):
    with raises(OperatorError, says):
        operator(**given)


def test_an_expression_needs_a_signature():
    with pytest.raises(OperatorError, match="needs a signature"):
        cml.register(cml.OpSpec("soft", expression="a"))


def test_shape_and_numpy_function_follow_from_the_expression():
    spec = operator(
        "x < 0 ? {k} * x : relu(x) * y", "x: tensor<scalar>, k: scalar, y: tensor<scalar>"
    )
    facts = Fact("scalar", (2, 3)), Fact("scalar", (2,))
    assert spec.infer(Attrs(k=1.0), *facts) == facts[0]
    x, y = np.array([[-1, 2, 3], [4, -5, 6]], np.float32), np.array([10, 20], np.float32)
    got = spec.cpu(Attrs(k=0.1), x, y)
    np.testing.assert_array_equal(got, np.where(x < 0, np.float32(0.1) * x, x * y[:, None]))
    assert got.dtype == np.float32
    # without attribute defaults there are no test values
    assert spec.cases == () and spec.kernel is not None


def test_hlsl_only_function_requires_a_cpu_function():
    spec = operator("frac(x)", "x: tensor<scalar>", cpu=lambda attrs, x: x - np.floor(x))
    assert spec.formula.hlsl == "frac(a)" and len(spec.cases) == 2
