"""Tests of NNEF's lexer, parser, printer and standard library, and of the time to read a model."""

import time

import pytest

from cml_engine.errors import NnefSyntaxError, UnsupportedOp
from cml_engine.nnef import signature, standard_signatures
from cml_engine.nnef.expansion.signatures import STDLIB
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.parser import ExpressionParser, parse, parse_fragments
from cml_engine.nnef.text.printer import print_document, print_expression, print_fragment
from cml_engine.nnef.text.syntax_tree import Binary, Literal, Name
from tests.fixtures.messages import raises
from tests.nnef.conftest import load_native, primitive

EXPRESSIONS = [
    "1",
    "-1",
    "1e-05",
    "true",
    "'it\\'s'",
    "a + b - c",
    "a - (b - c)",
    "(a + b) * c ^ 2.0",
    "(a ^ b) ^ c",
    "a ^ (b ^ c)",
    "-a ^ 2.0",
    "-(a ^ 2.0)",
    "!a && (b || c)",
    "a < b == (c >= d)",
    "x in [1, 2]",
    "a if b else c if d else e",
    "(a if b else c) if d else e",
    "(a if b else c) + 1",
    "[for i in a, j in b if i > j yield (i, j)]",
    "[for i in (a if b else c) yield i]",
    "f(x, y = [1, (2, 3)])[0][1:][:n / 2]",
    "cast<integer>(x)",
    "length_of(shape_of(x)) + integer('3')",
    "[]",
    "(1, 2)",
]


def expression(text):
    parser = ExpressionParser(SourceText(text, "e"))
    found = parser.expression()
    parser.expect("end")
    return found


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_printed_expression_parses_to_the_same_tree(text):
    tree = expression(text)
    printed = print_expression(tree)
    assert expression(printed) == tree
    assert print_expression(expression(printed)) == printed


def test_literals_of_different_types_differ():
    assert len({str(expression(t)) for t in ("1", "1.0", "true", "'1'")}) == 4
    assert expression("1") != expression("1.0")
    assert expression("1") != expression("true")


def test_operators_group_from_the_left_by_precedence():
    a, b, c = Name("a"), Name("b"), Name("c")
    assert expression("a - b - c") == Binary("-", Binary("-", a, b), c)
    assert expression("a ^ b ^ c") == Binary("^", Binary("^", a, b), c)
    assert expression("a < b + c") == Binary("<", a, Binary("+", b, c))
    assert expression("a && b < c") == Binary("&&", a, Binary("<", b, c))
    assert expression("a in b && c") == Binary("in", a, Binary("&&", b, c))
    assert expression("-2 ^ b") == Binary("^", Literal(-2, "integer"), b)


def test_the_standard_library_survives_printing():
    fragments = parse_fragments(STDLIB.source.text, "stdlib")
    printed = "\n".join(map(print_fragment, fragments))
    assert parse_fragments(printed, "printed") == fragments


def test_a_document_survives_printing():
    text = """
    version 1.0;
    extension KHR_enable_fragment_definitions KHR_enable_operator_expressions;
    extension other;
    fragment f<? = scalar>(a: tensor<?>[], b: (integer, scalar)[] = [(1, 2.0)], c: tensor<>,
                           d: tensor<scalar>= 0.0) -> (y: tensor<?>, z: tensor<scalar>[]);
    fragment g(x: tensor<scalar>) -> (y: tensor<scalar>) { a, [b, (c, d)] = f(x); y = a # done
    ; }
    graph net(x) -> (y) { x = external(shape = []); (y) = g<?>(x); }
    """
    document = parse(text)
    assert parse(print_document(document)) == document
    assert [name.id for name in document.extensions][-1] == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g() -> () {", "1:18: wanted a name to assign to, or '}', got the end of the file"),
        ("version 1.1;\ngraph g() -> () {}", "1:9: NNEF version 1.1 is not supported: wanted 1.0"),
        ("graf g() -> () {}", "1:1: wanted 'graph', got 'graf'"),
        ("graph g(x) -> (y)\n{ y = relu(x)\n}", "3:1: wanted ';', got '}'"),
        ("graph g() -> () { y = 'abc\n; }", "1:23: this string has no closing ' on its line"),
        ("graph g() -> () { y = \u00e9; }", "1:23: unexpected character 'é'"),
        ("graph g() -> () { y = 99999999999999999999; }", "does not fit in 64 bits"),
        ("graph g() -> () { y = f(1 2); }", "1:27: wanted ',' or ')', got '2'"),
        ("graph g() -> () {} x", "1:20: wanted the end of the file after the graph's '}'"),
        ("graph tensor() -> () {}", "1:7: wanted the graph's name, got 'tensor'"),
        ("", "1:1: wanted 'graph', got the end of the file"),
    ],
)
def test_syntax_errors_state_position_and_problem(text, message):
    with raises(NnefSyntaxError, message) as error:
        parse(text, "m.nnef")
    assert str(error.value).startswith("m.nnef:")


def test_a_message_shows_the_line_and_a_caret():
    with pytest.raises(NnefSyntaxError) as error:
        parse("graph g(x) -> (y)\n{\n\ty = conv(x,, w);\n}")
    assert str(error.value).splitlines()[1:] == ["    \ty = conv(x,, w);", "    \t           ^"]


@pytest.mark.parametrize("opening", ["(", "[", "-", "f(", "1 if ", "[for i in a yield ", "a["])
def test_deep_nesting_is_a_message(opening):
    with pytest.raises(NnefSyntaxError, match="nested deeper than 64 levels"):
        parse(f"graph g() -> () {{ y = {opening * 5000}")


def test_long_operator_chains_are_not_nesting():
    chain = " + ".join(["1"] * 20_000)
    tree = expression(chain)
    assert print_expression(tree) == chain


@pytest.mark.parametrize("text", ["a" * 1001, "1" * 401, "1." + "0" * 400])
def test_long_tokens_are_shortened_in_messages(text):
    with pytest.raises(NnefSyntaxError, match=f" of {len(text)} characters: shorten it") as error:
        parse(f"version 1.0; graph g(x) -> (y) {{ y = f({text}); }}")
    assert len(str(error.value)) < 700


def test_the_standard_has_46_compound_operators():
    names = standard_signatures()
    assert (len(names), sum(map(primitive, names))) == (119, 73)


def test_signatures_distinguish_tensors_and_attributes():
    conv = signature("conv")
    assert [p.name for p in conv.tensors] == ["input", "filter", "bias"]
    assert conv.by_name["bias"].default == 0.0
    assert conv.by_name["padding"].is_array
    assert not conv.by_name["padding"].is_tensor
    assert signature("concat").tensors[0].is_array
    assert signature("cast").needs_dtype
    assert not signature("select").needs_dtype
    with pytest.raises(UnsupportedOp, match="did you mean 'softmax'"):
        signature("sofmax")


def text_of(count):
    lines = [
        f"    x{i + 1} = conv(x{i}, w, 0.0, stride = [1, 1], dilation = [1, 1], "
        "padding = [(1, 1), (1, 1)], border = 'constant', groups = 1);"
        for i in range(count)
    ]
    head = (
        "version 1.0;\ngraph big(x) -> (y)\n{\n    x = external(shape = [1, 8, 32, 32]);\n"
        "    w = constant(shape = [8, 8, 3, 3], value = [0.5]);\n    x0 = relu(x);\n"
    )
    return head + "\n".join(lines) + f"\n    y = relu(x{count});\n}}\n"


def test_the_time_is_linear(write_model):
    seconds = []
    for count in (1_000, 4_000):
        path = write_model(text_of(count))
        start = time.process_time()
        graph = load_native(path)
        seconds.append(time.process_time() - start)
        assert len(graph.nodes) == count + 2
    assert seconds[1] < 2  # about 0.4 s; the rest is for slow and busy machines
    assert seconds[1] < 10 * seconds[0]  # 4 if linear, 16 if quadratic
