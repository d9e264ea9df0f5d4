"""Tests of NNEF's text: lexer, parser, printer, expressions, and limits that no text can exceed."""

import time

import pytest

from cml_engine.errors import CmlError, ModelError, NnefSyntaxError, UnsupportedOp
from cml_engine.io.load_limits import LoadLimits, OverBudget, load_budget
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


def test_signature_of_an_unknown_operator_is_refused():
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2] + [3]", [1, 2, 3]),
        ("[1] * 3", [1, 1, 1]),
        ("[for i in range_of([7, 7, 7]) yield i * i]", [0, 1, 4]),
        ("[for i in [1, 2, 3], j in [4, 5, 6] if i != 2 yield i * j]", [4, 18]),
        ("[7 / 2, -7 / 2, 7 / -2]", [3, -3, -3]),
        ("[2 ^ 10, 1 - 2 - 3, 2 + 3 * 4]", [1024, -4, 14]),
        ("[1, 2, 3, 4][1:3]", [2, 3]),
        ("[1, 2, 3, 4][2:] + [1, 2, 3][:1]", [3, 4, 1]),
        ("[[5, 6][1], length_of([1, 2]), integer(3.9), integer('12'), integer(true)]",
         [6, 2, 3, 12, 1]),
        ("[1] if (2 in [1, 2]) && !(1.5 < 1) else [2]", [1]),
        ("[1] if true || false else [1, 2][7:8]", [1]),
        ("[0] if string(1.5) == '1.5' && logical(1) else [[]][3]", [0]),
        ("[integer(scalar(2) + 0.5), -(-3), +4]", [2, 3, 4]),
        ("[length_of('abc' + 'd')]", [4]),
        ("[1 if [1, 2] == [1, 2] else 0]", [1]),
    ],
)  # fmt: skip
def test_values(load_body, text, value):
    graph = load_body(f"y = reshape(x, shape = {text});")
    assert graph.nodes[0].attrs.shape == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1 / 0]", "division by zero"),
        ("[1, 2][2]", "index 2 is outside an array of 2 elements"),
        ("[for i in 3 yield i]", "'i in' wants an array, got integer 3"),
        ("[for i in [1], j in [1, 2] yield i]", "arrays of one length, got [1, 2]"),
        ("[1] + 1", "'+' cannot take array and integer"),
        ("[-'a']", "'-' wants a number, got string"),
        ("[!1]", "'!' wants a logical, got integer"),
        ("[1 in 2]", "'in' wants an array on its right, got integer"),
        ("[1] if x else [2]", "use select(condition, yes, no)"),
        ("[integer('a')]", "integer() cannot convert 'a'"),
        ("[length_of(1)]", "length_of() wants an array, got integer 1"),
        ("[9223372036854775807 + 1]", "an integer beyond 64 bits"),
        ("[9 ^ 999999999]", "has no value"),
        ("[1] * 6000001", "an array of 6,000,001 elements (larger ones belong in a .dat) needs"),
        ("[[[[[[[[[1]]]]]]]]]", "an array of more than 8 levels"),
        ("shape_of(r)", "shape_of() needs shapes, which are not known here"),
        ("[nothing]", "'nothing' is not defined: assign it above this line"),
        ("[xx]", "'xx' is not defined: did you mean 'x'?"),
    ],
)
def test_messages(load_body, text, message):
    with raises(ModelError, message) as error:
        load_body(f"r = relu(x); y = reshape(r, shape = {text});")
    assert "graph.nnef:7:" in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        "a = [1] * 3000000; b = a + a; y = relu(x);",
        "a = [[1] * 1000] * 1000; b = [a, a, a, a, a, a]; y = relu(x);",
        "r = [0] * 1000000; y = reshape(x, shape = [for i in r if i in r[1:] + [1] yield i]);",
        "r = [1] * 1000000; y = reshape(x, shape = [for i in r if 0 in r yield i]);",
        "r = [1] * 1000000; y = reshape(x, shape = [for i in r if r == r yield i]);",
        "s = 'aaaaaaaaaa'; " + "".join(
            f"s{i} = {a} + {a}; " for i, a in enumerate(["s", *[f"s{i}" for i in range(30)]])
        ) + "y = relu(x);",
        "a0 = [1]; " + "".join(f"a{i + 1} = [a{i}, a{i}]; " for i in range(60)) + "y = relu(x);",
        "a0 = (1, 1); " + "".join(f"a{i + 1} = (a{i}, a{i}); " for i in range(60)) + "y = relu(x);",
        "r = range_of([0] * 100000); y = reshape(x, shape = "
        "[for i in r yield length_of([for j in r yield i])]);",
        "y = constant(shape = [100000, 100000], value = [1.0]);",
        "[y] = copy_n(x, times = 1000000000);",
    ],
)  # fmt: skip
def test_hostile_texts_are_refused_quickly(load_body, body):
    start = time.process_time()  # processor time, so that other load does not count
    with pytest.raises(CmlError), load_budget(LoadLimits(memory=2**26, steps=300_000)):
        load_body(body)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = [for i in range_of([0] * 1001) yield relu(x)]; y = relu(x);", "operator relu"),
        ("a = copy_n(x, times = 600); b = copy_n(x, times = 600); y = relu(x);", "copy_n"),
    ],
)
def test_models_of_too_many_tensors_are_stopped(load_body, body, message):
    """Comprehensions and ``copy_n`` that need more nodes than the load limit raise
    ``OverBudget``."""
    with (
        pytest.raises(OverBudget, match=f"7:.*{message} needs .* the limit is 1,000"),
        load_budget(LoadLimits(nodes=1_000)),
    ):
        load_body(body)


def test_exponential_fragments_are_refused(load_body):
    fragments = "fragment f0(x: scalar) -> (y: scalar) { y = x; }\n" + "".join(
        f"fragment f{i + 1}(x: scalar) -> (y: scalar) {{ y = f{i}(f{i}(x)); }}\n" for i in range(35)
    )
    with (
        pytest.raises(OverBudget, match="the evaluation of expressions needs"),
        load_budget(LoadLimits(steps=100_000)),
    ):
        load_body(
            "y = relu(x * f35(1.0));", fragments=fragments, native=lambda op: not op.startswith("f")
        )
