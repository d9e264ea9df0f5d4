"""Tests of a game's own operators: errors at registration and in their functions, kernel names."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.plan_graph import lower as plan
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.errors import OperatorError
from cml_engine.gpu.shaders.hlsl import parse_params
from cml_engine.ir.graph import Fact, Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops import load_file
from cml_engine.ops.declaration.registry import load_families, registered
from cml_engine.ops.declaration.spec import Traits
from cml_engine.ops.declaration.split_bindings import declaration
from cml_engine.ops.registration import registering
from tests.fixtures.graphs import node
from tests.fixtures.messages import raises
from tests.fixtures.models import write_model

pytestmark = pytest.mark.usefixtures("own_operators")
KERNEL = "void kernel(uint thread) { y[thread] = x[thread]; }"
MAIN = "[numthreads(GROUP, 1, 1)] void main() { /* cml_epilogue( */ }"
FACTS = dict.fromkeys("xk", Fact("scalar", (8,)))
SIGNATURE = "fragment twice(x: tensor<scalar>, k: scalar = 2.0) -> (y: tensor<scalar>);"


def spec(**changes):
    given = {
        "name": "twice",
        "signature": SIGNATURE,
        "infer": ops.same_as(0),
        "kernel": cml.Kernel(source=KERNEL),
    }
    return cml.OpSpec(**{**given, **changes})


def kernel(**changes):
    """Returns the change of a spec to a kernel with these fields."""
    return {"kernel": cml.Kernel(**{"source": KERNEL, **changes})}


WRONG = [
    ({"name": "two words"}, "not an identifier"),
    ({"name": "relu", "signature": ""}, "'relu' is registered already"),
    ({"signature": "fragment twice(x: tensor<scalar>"}, "not an NNEF declaration"),
    ({"signature": "fragment other(x: tensor<scalar>) -> (y: tensor<scalar>)"}, "declares 'other'"),
    ({"signature": SIGNATURE.replace("k:", "matrix:")}, "a word of HLSL"),
    ({"signature": SIGNATURE.replace("k: scalar = 2.0", "x_size: integer")},
     "'x_size' in its signature is a name that the engine generates"),
    ({"infer": None}, "infer must be a function"),
    ({"kernel": None}, "it can run nowhere"),
    ({"kernel": "twice.hlsl"}, "kernel must be a cml.Kernel"),
    ({"kernel": cml.Kernel("nowhere.hlsl")}, "'nowhere.hlsl' is not in"),
    (kernel(source="void main() {}"), "no function `void kernel(uint thread)`"),
    (kernel(source="// void kernel(uint thread)"), "no function"),
    (kernel(source="void kernel() {}"), "wanted `void kernel(uint thread)`"),
    (kernel(group=4096), "wanted 1 to 1024"),
    (kernel(params="n:u"), "only a kernel with lower takes"),
    (kernel(params="n:double", lower=lambda op: []), "wanted name:u, name:i3, name:f"),
    (kernel(threads=lambda a, x: 1, lower=lambda op: []), "keep one"),
    ({"cases": [((3,),)]}, "cases must be cml.ops.Case"),
    ({"tolerance": "1e-5"}, "tolerance is '1e-5'; wanted a number such as 1e-5, or cml.ops.Tol"),
    ({"tolerance": True}, "tolerance is True; wanted a number"),
    ({"tolerance": -1e-5}, "of finite numbers, 0 or more"),
    ({"tolerance": ops.Tolerance("1e-5", 0.0)}, "wanted a number such as"),
    ({"tolerance": ops.Tolerance(float("nan"), 0.0, "none")}, "of finite numbers, 0 or more"),
    (kernel(epilogues="places"), "states epilogues, which `void"),
    (kernel(half="each"), "takes none: its layouts are plain"),
    (kernel(group=(8, 8)), "its group is (8, 8); write group=64"),
    (kernel(source=KERNEL.replace("uint", "uint2")), "its group is 64; write group=(8, 8)"),
    (kernel(group=(64, 64)), "wanted 1 to 1024 threads"),
    (kernel(source="void kernel(uint2 group, uint lane) {}"), "also with uint2 or uint3"),
    (kernel(source=MAIN, epilogues="places", lower=lambda op: []), "never calls cml_epilogue"),
    (kernel(interface="float x;"), "which the engine writes"),
    (kernel(in_place="z"), "wanted the name of an operand: x"),
    (kernel(source=MAIN, in_place="x", lower=lambda op: []),
     "in_place, which wants a `void kernel"),
    (kernel(defines={"A B": 1}), "defines 'A B' as 1"),
    (kernel(defines={"A": "1\n#include"}), "of one line"),
    (kernel(source=7), "kernel's source is 7; wanted a text"),
    (kernel(alternatives=[cml.Kernel(source=KERNEL)]), "give each a name of its own"),
    (kernel(alternatives=[cml.Kernel(source=KERNEL, name="b", layouts="same")]),
     "'b' states layouts 'same'; wanted 'plain'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_a_wrong_declaration_is_refused_at_once_by_name(changes, says):
    with raises(OperatorError, says) as caught:
        cml.register(spec(**changes))
    assert changes.get("name", "twice") in str(caught.value)
    assert changes.get("name") == "relu" or changes.get("name", "twice") not in registered()


def test_a_standard_operator_keeps_its_own_signature():
    right = registered()["relu"]
    ops.unregister("relu")
    try:
        with pytest.raises(OperatorError, match="NNEF defines it as relu"):
            cml.register(spec(name="relu", signature=SIGNATURE.replace("twice", "relu")))
    finally:
        cml.register(right)


@pytest.mark.parametrize("how", ["file", "functions", "loaded"])
def test_a_relative_path_starts_at_the_file_of_the_operator(tmp_path, how):
    (tmp_path / "twice.hlsl").write_text(KERNEL)
    file = tmp_path / "ops.py"
    file.write_text("def numpy_twice(x):\n    return 2 * x\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    declared = spec(kernel=cml.Kernel("twice.hlsl"))
    if how == "file":
        found = cml.register(declared, file)
    elif how == "functions":
        found = cml.register(replace(declared, cpu=scope["numpy_twice"]))
    else:
        with registering(file):
            found = cml.register(declared)
    assert found.kernel.path == tmp_path / "twice.hlsl"
    assert found.is_custom and found.custom


def graph_of(shape, attrs, op="twice"):
    facts = dict.fromkeys("ab", Fact("scalar", shape))
    return Graph("g", ("a",), ("b",), (node(f"b = {op}(a)", **attrs),), facts)


def step_of(shape, attrs, **changes):
    cml.register(spec(**changes))
    try:
        (step,) = plan(graph_of(shape, attrs), Limits()).steps
    finally:
        ops.unregister("twice")
    return step


def test_kernel_source_defines_tensors_and_attributes_by_name():
    step = step_of((2, 3, 5), {"k": 2.5})
    for part in (
        "RWStructuredBuffer<float> x_part0;",
        "typedef float x_type;",
        "static uint x_size",
        "static uint x_rank",
        "uint x_shape(uint d)",
        "uint x_stride(uint d)",
        "uint x_coord(uint i, uint d)",
        "RWStructuredBuffer<float> y;",
        "static float k",
        "kernel(cml_thread);",
    ):
        assert part in step.interface
    assert step.params["cml_p_x"] == [30, 3, 2, 3, 5, 1, 1, 1, 1, 1, 15, 5, 1, 0, 0, 0, 0, 0]
    assert step.params["cml_p_k"] == 2.5 and step.params["cml_p_cml_threads"] == 30
    assert step.groups == 1 and not step.trusted


def test_other_shape_keeps_interface_and_defines():
    one, two = step_of((4, 4), {"k": 1.0}), step_of((1, 300, 7), {"k": 3.0})
    assert one.interface == two.interface and one.params_layout == two.params_layout
    assert one.defines == two.defines and two.groups == 33


@pytest.mark.parametrize("options", [{}, {"element": "float4"}, {"memory": "y"}])
def test_tensor_in_one_part_has_the_same_code_at_every_size(options):
    small, large = (declaration("x", "uint2", 2, 1, size, **options) for size in (64, 128))
    assert small == large


ATTRS = "fragment twice(x: tensor<scalar>, {}) -> (y: tensor<scalar>);"


@pytest.mark.parametrize(
    ("declared", "value", "hlsl", "packed"),
    [
        ("n: integer", 3, "static int n = ", 3),
        ("n: scalar", 3, "static float n = ", 3),
        ("n: logical", True, "static bool n = ", True),
        ("n: integer[]", [1, 2], "int n(uint i)", [1, 2]),
        ("n: scalar[]", [], "float n(uint i)", [0]),
        ("n: (integer, integer)[]", [(1, 2), (3, 4)], "int n(uint i)", [1, 2, 3, 4]),
    ],
)
def test_attributes_have_the_type_of_the_signature(declared, value, hlsl, packed):
    step = step_of((4,), {"n": value}, signature=ATTRS.format(declared))
    assert hlsl in step.interface and step.params["cml_p_n"] == packed
    if isinstance(value, list):
        assert "static uint n_count" in step.interface
        assert step.params["cml_p_n_count"] == len(packed if value else [])


def test_a_text_is_a_define():
    step = step_of((4,), {"border": "reflect-even"}, signature=ATTRS.format("border: string"))
    assert step.defines["border_is_reflect_even"] == 1


def test_attribute_lists_of_similar_length_share_a_variant():
    def variant(length):
        values = {"n": list(range(length))}
        return step_of((4,), values, signature=ATTRS.format("n: integer[]")).params_layout

    assert variant(1) == variant(16) != variant(17) == variant(32)
    with pytest.raises(OperatorError, match="make it a tensor"):
        variant(5000)


def test_without_a_signature_names_are_numbered():
    source = "void kernel(uint thread) { out0[thread] = in0[thread]; }"
    step = step_of((4,), {"n": 2}, signature="", kernel=cml.Kernel(source=source))
    assert "static in0_in_parts in0;" in step.interface
    assert "RWStructuredBuffer<float> out0;" in step.interface and "static int n" in step.interface


def test_two_arguments_mean_every_thread_of_a_workgroup():
    source = "void kernel(uint group, uint lane) {}"
    step = step_of((4,), {}, kernel=cml.Kernel(source=source, group=32))
    assert "kernel(cml_group, cml_lane);" in step.interface and step.defines["GROUP"] == 32


def test_number_of_threads_must_be_whole():
    with pytest.raises(OperatorError, match="twice.*wanted a whole number"):
        step_of((4,), {}, kernel=cml.Kernel(source=KERNEL, threads=lambda a, x: x.size / 3))


def test_an_operator_without_kernel_is_a_step_on_the_cpu():
    cml.register(spec(kernel=None, cpu=lambda attrs, x: attrs.k * x))
    (part,) = plan(graph_of((4,), {"k": 2.0}), Limits()).cpu_parts
    assert (tuple(part.reads), tuple(part.writes)) == (("a",), ("b",))
    out = cml.Session(graph_of((2,), {"k": 2.0}), "cpu").run({"a": np.ones(2, np.float32)})
    assert out["b"].tolist() == [2, 2]


def test_passes_of_one_operator_name_their_own_tensors():
    def both(op):
        part = op.scratch(4)
        yield op.launch(4, reads={"x": op.in_names[0]}, writes={"part": part}, defines={"PASS": 0})
        yield op.launch(
            1,
            reads={"part": part},
            writes={"y": op.out_names[0]},
            defines={"PASS": 1},
            values={"scale": 0.5},
        )

    cml.register(spec(kernel=cml.Kernel(source=KERNEL, lower=both)))
    first, second = plan(graph_of((64,), {"k": 1.0}), Limits()).steps
    assert "RWStructuredBuffer<float> part;" in first.interface
    assert first.bindings[1] == second.bindings[0]
    assert second.defines["PASS"] == 1 and second.params["cml_p_scale"] == 0.5


def test_kernel_path_may_name_an_engine_file():
    with pytest.raises(OperatorError, match=r"'conv\.hlsl' has no function `void kernel"):
        cml.register(spec(kernel=cml.Kernel("conv/conv.hlsl")))


# ---------------------------------------------------------------- errors in a game's functions


def plan_of(lower=None, kernel=None, op="twice", nodes=1):
    """Registers the operator ``twice`` and returns the plan of a graph with a chain of ``op``.

    The chain has ``nodes`` nodes and stands next to an unrelated ``neg``. ``kernel`` or ``lower``
    replaces the operator's kernel.
    """
    kernel = kernel or cml.Kernel(source=KERNEL, lower=lower)
    cml.register(spec(kernel=kernel))
    chain = [node("other = neg(x)"), node(f"y0 = {op}(x)", k=2.0)]
    chain += [node(f"y{i} = {op}(y{i - 1})", k=2.0 + i) for i in range(1, nodes)]
    outputs = ("other", f"y{nodes - 1}")
    graph = Graph("g", ("x",), outputs, tuple(chain), FACTS, {"k": np.ones(8, np.float32)})
    return plan(infer_facts(graph), Limits())


def launch(op, reads="x", outputs="y0", **changes):
    return replace(op.launch(8, reads={"x": reads}, writes={"y": outputs}), **changes)


LAUNCHES = [
    (lambda op: [launch(op, "y0", "x")], "writes to 'x', its input"),
    (lambda op: [launch(op, outputs="other")], "binds 'other', which is no tensor of this node"),
    (lambda op: [launch(op, reads="k")], "binds 'k', which is no tensor of this node"),
    (
        lambda op: [launch(op, outputs=op.pack("t", lambda: np.ones(8)))],
        "writes to 't', a constant",
    ),
    (lambda op: [launch(op, outputs=op.scratch(8))], "writes nothing to its result 'y0'"),
    (lambda op: [], "writes nothing to its result 'y0'"),
    (lambda op: None, "its lower function failed: TypeError"),
    (lambda op: ["y0"], "gives 'y0', wanted a cml.ops.Dispatch"),
    (lambda op: [launch(op, groups=1.5)], "wants 1.5 workgroups"),
    (lambda op: [launch(op, groups=-1)], "wants -1 workgroups"),
    (lambda op: [launch(op, writes=3)], "writes 3 of 2 tensors"),
    (lambda op: [launch(op, writes=2)], "writes to 'x', its input"),
    (lambda op: [launch(op, tensors=("gone", "y0"))], "binds 'gone'"),
    (lambda op: [launch(op, cost=3.0)], "has a kernel or a cost of another type"),
    (lambda op: [launch(op, op.scratch(2.5))], r"scratch\(2.5\): wanted a whole number"),
    (lambda op: [launch(op, op.pack("x", lambda: np.ones(8)))], "the model has a tensor of that"),
    (
        lambda op: [launch(op, op.pack("t", lambda: np.array(["a"])))],
        "wants numbers or truth values",
    ),
]


@pytest.mark.parametrize(("lower", "says"), LAUNCHES)
def test_launch_with_foreign_bindings_is_refused(lower, says):
    with pytest.raises(OperatorError, match=f"twice.*{says}"):
        plan_of(lower)


def test_packed_constants_are_keyed_by_content():
    def lower(op):
        table = op.pack("table", lambda: np.full(8, op.attrs.k))
        yield op.launch(8, reads={"x": table}, writes={"y": op.out_names[0]})

    with pytest.raises(OperatorError, match=r"pack\('table'\) means other numbers in another node"):
        plan_of(lower, nodes=2)
    ops.unregister("twice")
    weights = plan_of(lower).weights["table"][1]
    assert weights.dtype == np.float32 and np.all(weights == 2)


def test_declared_epilogue_must_be_applied_by_the_kernel():
    source = "void main() { float v = cml_epilogue(1.0, 0, 0); }"

    def lower(op):
        yield ops.Dispatch(1, (op.in_names[0], op.out_names[0]))

    kernel = cml.Kernel(source=source, lower=lower, epilogues="places")
    cml.register(spec(kernel=kernel))
    nodes = (node("y = twice(x)", k=2.0), node("z = relu(y)"))
    graph = optimize(Graph("g", ("x",), ("z",), nodes, {"x": FACTS["x"]}))
    with pytest.raises(OperatorError, match=r"does not apply the epilogues .* states \(relu\)"):
        plan(graph, Limits())


INFERRED = [
    (None, "gave None; wanted a cml.ops.Fact"),
    ("scalar", "gave 'scalar'; wanted"),
    (Fact("float32", (8,)), "wanted a cml.ops.Fact of scalar, integer, logical"),
    (Fact("scalar", [8]), "a tuple of whole numbers"),
    (Fact("scalar", (8.0,)), "a tuple of whole numbers"),
    (Fact("scalar", (True,)), "a tuple of whole numbers"),
    ([Fact("scalar", (8,)), None], "a tuple of whole numbers"),
]


@pytest.mark.parametrize(("given", "says"), INFERRED)
def test_invalid_infer_result_names_the_operator(given, says):
    cml.register(spec(infer=lambda attrs, x: given))
    with pytest.raises(OperatorError, match=f"twice 'b': its infer function .*{says}"):
        infer_facts(graph_of((8,), {"k": 2.0}))


COMPUTED = [
    (None, "gave NoneType; wanted 1 of arrays"),
    ([], "gave nothing; wanted 1 of arrays"),
    ([np.ones(8), np.ones(8)], "gave ndarray, ndarray; wanted 1"),
    (np.array(["a"] * 8), "gave ndarray; wanted 1 of arrays of numbers"),
    (np.ones(8, complex), "gave ndarray; wanted 1 of arrays of numbers"),
    (np.ones(9), r"gave the shape \[9\], infer said \[8\]"),
]


@pytest.mark.parametrize(("given", "says"), COMPUTED)
@pytest.mark.parametrize("constant", [False, True])
def test_invalid_cpu_result_names_the_operator(given, says, constant):
    cml.register(spec(cpu=lambda attrs, x: given))
    call = node(f"y = twice({'k' if constant else 'x'})", k=2.0)
    graph = Graph("g", ("x",), ("y",), (call,), FACTS, {"k": np.ones(8, np.float32)})
    with pytest.raises(OperatorError, match=f"twice 'y'.*{says}"):
        cml.Session(graph, "cpu").run({"x": np.ones(8, np.float32)})


def test_prepare_must_return_a_function():
    cml.register(spec(cpu=lambda attrs, x: x, prepare=lambda attrs, facts, values, scratch: 3))
    with pytest.raises(OperatorError, match="prepare function gave 3; wanted a function"):
        cml.Session(graph_of((8,), {"k": 2.0}), "cpu")


@pytest.mark.parametrize("cost", [None, 3.0, ops.Cost(float("nan"), 0, 0), ops.Cost(-1, 0, 0)])
def test_a_cost_is_a_cost(cost):
    cml.register(spec(cost=lambda attrs, inputs, outputs: cost))
    with pytest.raises(OperatorError, match="operator 'twice': its cost function gave"):
        plan(graph_of((8,), {"k": 2.0}), Limits())


def test_alias_must_have_the_size_of_its_source():
    larger = {"infer": lambda attrs, x: Fact("scalar", (16,)), "kernel": None, "alias": True}
    cml.register(spec(cpu=lambda attrs, x: np.tile(x, 2), **larger))
    graph = infer_facts(graph_of((8,), {"k": 2.0}))
    with pytest.raises(OperatorError, match=r"an alias of scalar\[8\] cannot be scalar\[16\]"):
        plan(graph, Limits())


load_families()


def test_game_operator_gets_no_engine_traits():
    ops.unregister("concat")
    try:
        spec = cml.register(cml.OpSpec("concat", infer=ops.same_as(0), cpu=np.concatenate))
        assert spec.traits == Traits()
        with pytest.raises(OperatorError, match="states traits, which are for the engine's own"):
            cml.register(
                cml.OpSpec("mine", infer=ops.same_as(0), cpu=np.abs, traits=Traits(is_sum=True))
            )
    finally:
        ops.unregister("concat")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "has no value"),
        ({"n": 1, "m": 2}, "not declared"),
        ({"n": (1, 2)}, "holds 1 words, got 2"),
    ],
)
def test_wrong_values_are_refused(values, says):
    with pytest.raises(ValueError, match=says):
        parse_params("n:u").pack(values)


#: an operator whose functions call a function of a neighbouring file
OPS = """\
import cml_engine as cml
import helper

SOURCE = "void kernel(uint thread) { y[thread] = x[thread]; }"
cml.register(cml.OpSpec(
    "twice",
    signature="fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)",
    infer=cml.ops.same_as(0),
    cpu=lambda attrs, x: 2 * x,
    kernel=cml.Kernel(source=SOURCE),
))
"""
HELPER = "\n\ndef fail(*given):\n    return {}[given[0].strde]\n"
MODEL = """\
version 1.0;
graph g(x) -> (z) { x = external<scalar>(shape = [1, 4, 8, 8]);
  y = twice(x);
  z = relu(y);
}
"""
BROKEN = {
    "infer": ("infer=cml.ops.same_as(0)", "infer=helper.fail"),
    "cpu": ("cpu=lambda attrs, x: 2 * x", "cpu=helper.fail"),
    "prepare": ("cpu=", "prepare=helper.fail, cpu="),
    "cost": ("cpu=", "cost=helper.fail, cpu="),
    "threads": ("source=SOURCE", "source=SOURCE, threads=helper.fail"),
    "lower": ("source=SOURCE", "source=SOURCE, lower=helper.fail"),
    "half": (
        "source=SOURCE",
        "source=' ', params='n:u', lower=lambda op: [], layouts='any', half=helper.fail",
    ),
}


@pytest.fixture(autouse=True)
def _helper_of_this_test(monkeypatch):
    monkeypatch.delitem(sys.modules, "helper", raising=False)


def use(model, function):
    """Loads the model and does what first calls the named function of its operator.

    It runs the model on the CPU for ``cpu`` and ``prepare``, and plans it for a GPU for all others.
    """
    graph = cml.load(model)
    if function in ("cpu", "prepare"):
        cml.Session(graph, "cpu").run({"x": np.ones((1, 4, 8, 8), np.float32)})
    else:
        plan_graph(optimize(graph), Limits(), "half")


@pytest.mark.parametrize("function", BROKEN)
def test_a_failing_function_names_its_type_line_and_operator(tmp_path, function):
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "ops.py").write_text(OPS.replace(*BROKEN[function]))
    load_file(tmp_path / "ops.py")
    with pytest.raises(OperatorError) as caught:
        use(write_model(tmp_path / "m.nnef", MODEL), function)
    message = str(caught.value)
    assert f"twice 'y': its {function} function failed: " in message
    assert "AttributeError" in message and f"({tmp_path / 'helper.py'}:4)" in message
    assert "graph.nnef:3" in message
    assert isinstance(caught.value.__cause__, AttributeError)


class Refused(cml.ModelError):
    """A game's own error, whose constructor differs from that of ``CmlError``."""

    def __init__(self, extent):
        super().__init__(f"wanted 3 channels, got {extent}")
        self.extent = extent


@pytest.mark.parametrize("function", ["infer", "cpu", "lower"])
def test_game_error_keeps_its_class_and_gets_the_model_line(tmp_path, function):
    def refuse(*given):
        raise Refused(4)

    functions = {"infer": ops.same_as(0), "cpu": lambda attrs, x: x, "lower": None}
    functions[function] = refuse
    kernel = cml.Kernel(source="void kernel(uint thread) {}", lower=functions.pop("lower"))
    signature = "fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)"
    cml.register(cml.OpSpec("twice", signature=signature, kernel=kernel, **functions))
    with pytest.raises(Refused, match="graph.nnef:3.*wanted 3 channels, got 4") as caught:
        use(write_model(tmp_path / "m.nnef", MODEL), function)
    assert caught.value.extent == 4
    assert caught.traceback[-1].name == "refuse"
