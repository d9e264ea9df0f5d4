"""A game's own operator: mistakes show when it is registered, and what its kernel finds by name."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import OperatorError
from cml_engine.graph import Attrs, Fact, Graph, Node
from cml_engine.ops import load_families, registered
from cml_engine.ops.lowering import Limits
from cml_engine.passes.lower import lower

load_families()
KERNEL = "void kernel(uint thread) { y[thread] = x[thread]; }"
SIGNATURE = "fragment twice(x: tensor<scalar>, k: scalar = 2.0) -> (y: tensor<scalar>);"


@pytest.fixture(autouse=True)
def _registry():
    before = set(registered())
    yield
    for name in set(registered()) - before:
        cml.unregister(name)


def spec(**changes):
    given = {
        "name": "twice",
        "signature": SIGNATURE,
        "infer": cml.same_as(0),
        "kernel": cml.Kernel(source=KERNEL),
    }
    return cml.OpSpec(**{**given, **changes})


WRONG = [
    ({"name": "two words"}, "not an identifier"),
    ({"name": "relu", "signature": ""}, "'relu' is registered already"),
    ({"signature": "fragment twice(x: tensor<scalar>"}, "not an NNEF declaration"),
    ({"signature": "fragment other(x: tensor<scalar>) -> (y: tensor<scalar>)"}, "declares 'other'"),
    (
        {"signature": "fragment twice(matrix: tensor<scalar>) -> (y: tensor<scalar>)"},
        "a word of HLSL",
    ),
    (
        {"signature": "fragment twice(x: tensor<scalar>, x_size: integer) -> (y: tensor<scalar>)"},
        "'x_size' in its signature is a name that the engine generates",
    ),
    ({"infer": None}, "infer must be a function"),
    ({"cpu": 3}, "cpu must be a function"),
    ({"kernel": None}, "it can run nowhere"),
    ({"kernel": "twice.hlsl"}, "kernel must be a cml.Kernel"),
    ({"kernel": cml.Kernel("nowhere.hlsl")}, "'nowhere.hlsl' is not in"),
    ({"kernel": cml.Kernel(source="void main() {}")}, "no function `void kernel(uint thread)`"),
    ({"kernel": cml.Kernel(source="// void kernel(uint thread)")}, "no function"),
    ({"kernel": cml.Kernel(source="void kernel() {}")}, "wanted `void kernel(uint thread)`"),
    ({"kernel": cml.Kernel(source=KERNEL, group=4096)}, "wanted 1 to 1024"),
    ({"kernel": cml.Kernel(source=KERNEL, params="n:u")}, "only a kernel with lower takes"),
    (
        {"kernel": cml.Kernel(source=KERNEL, params="n:double", lower=lambda op: [])},
        "wanted name:u, name:i3, name:f",
    ),
    (
        {"kernel": cml.Kernel(source=KERNEL, threads=lambda a, x: 1, lower=lambda op: [])},
        "keep one",
    ),
    ({"cases": [((3,),)]}, "cases must be cml.Case"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_declaration_is_refused_at_once_by_name(changes, says):
    with pytest.raises(OperatorError) as caught:
        cml.register(spec(**changes))
    assert says in str(caught.value)
    assert changes.get("name", "twice") in str(caught.value)
    assert changes.get("name") == "relu" or changes.get("name", "twice") not in registered()


def test_a_standard_operator_keeps_its_own_signature():
    right = registered()["relu"]
    cml.unregister("relu")
    try:
        with pytest.raises(OperatorError, match="NNEF defines it as relu"):
            cml.register(spec(name="relu", signature=SIGNATURE.replace("twice", "relu")))
    finally:
        cml.register(right)


def test_a_name_is_taken_once():
    cml.register(spec())
    with pytest.raises(OperatorError, match="'twice' is registered already"):
        cml.register(spec())


def test_a_relative_path_starts_at_the_file_that_registers(tmp_path):
    (tmp_path / "twice.hlsl").write_text(KERNEL)
    code = compile("spec = cml.register(spec)", str(tmp_path / "ops.py"), "exec")
    (tmp_path / "ops.py").write_text("# a file that registers")
    scope = {"cml": cml, "spec": spec(kernel=cml.Kernel("twice.hlsl")), "__name__": "ops"}
    exec(code, scope)
    assert scope["spec"].kernel.path == tmp_path / "twice.hlsl"
    assert scope["spec"].from_game and scope["spec"].custom


def graph_of(shape, attrs, op="twice", dtype="scalar"):
    fact = Fact(dtype, shape)
    node = Node(op, ("a",), ("b",), Attrs(attrs))
    return Graph("g", ("a",), ("b",), (node,), {"a": fact, "b": fact})


def step_of(shape, attrs, **changes):
    cml.register(spec(**changes))
    try:
        (step,) = lower(graph_of(shape, attrs), Limits()).steps
    finally:
        cml.unregister("twice")
    return step


def test_tensors_and_attributes_are_there_by_their_names():
    step = step_of((2, 3, 5), {"k": 2.5})
    for part in (
        "RWStructuredBuffer<float> x;",
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
    assert step.params["cml_p_k"] == 2.5 and step.params["cml_p_threads"] == 30
    assert step.groups == 1 and not step.trusted


def test_a_new_shape_changes_parameters_only():
    one, two = step_of((4, 4), {"k": 1.0}), step_of((1, 300, 7), {"k": 3.0})
    assert one.interface == two.interface and one.params_layout == two.params_layout
    assert one.defines == two.defines and two.groups == 33


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


def test_lists_of_other_lengths_share_a_variant():
    def variant(length):
        values = {"n": list(range(length))}
        return step_of((4,), values, signature=ATTRS.format("n: integer[]")).params_layout

    assert variant(1) == variant(16) != variant(17) == variant(32)
    with pytest.raises(OperatorError, match="make it a tensor"):
        variant(5000)


def test_without_a_signature_names_are_numbered():
    source = "void kernel(uint thread) { out0[thread] = in0[thread]; }"
    step = step_of((4,), {"n": 2}, signature="", kernel=cml.Kernel(source=source))
    assert "RWStructuredBuffer<float> in0;" in step.interface
    assert "RWStructuredBuffer<float> out0;" in step.interface and "static int n" in step.interface


def test_two_arguments_mean_every_thread_of_a_workgroup():
    source = "void kernel(uint group, uint lane) {}"
    step = step_of((4,), {}, kernel=cml.Kernel(source=source, group=32))
    assert "kernel(cml_group, cml_lane);" in step.interface and step.defines["GROUP"] == 32


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (cml.Kernel(source=KERNEL, threads=lambda a, x: x.size / 3), "wanted a whole number"),
        (cml.Kernel(source=KERNEL, threads=lambda a, x: 1 // 0), "threads function failed: ZeroD"),
        (cml.Kernel(source=KERNEL, lower=lambda op: [op.nothing]), "lower function failed: Attri"),
    ],
)
def test_functions_that_fail_are_the_operator_s_fault(kernel, says):
    with pytest.raises(OperatorError, match=says) as caught:
        step_of((4,), {}, kernel=kernel)
    assert "'twice'" in str(caught.value)


def test_a_cost_function_that_fails_is_the_operator_s_fault():
    with pytest.raises(OperatorError, match="'twice': its cost function failed: Zero"):
        step_of((4,), {}, cost=lambda attrs, inputs, outputs: 1 // 0)


def test_an_operator_without_kernel_is_refused_on_the_gpu_only():
    cml.register(spec(kernel=None, cpu=lambda attrs, x: attrs.k * x))
    with pytest.raises(cml.ModelError, match="has no GPU kernel"):
        lower(graph_of((4,), {"k": 2.0}), Limits())
    out = cml.Session(graph_of((2,), {"k": 2.0}), "cpu").run({"a": np.ones(2, np.float32)})
    assert out["b"].tolist() == [2, 2]


def test_a_cpu_function_that_fails_is_the_operator_s_fault():
    for cpu, says in ((lambda a, x: 1 / 0, "cpu function failed"), (lambda a, x: x[:1], "shape")):
        cml.register(spec(cpu=cpu))
        with pytest.raises(OperatorError, match=says):
            cml.Session(graph_of((2,), {}), "cpu").run({"a": np.ones(2, np.float32)})
        cml.unregister("twice")


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
    first, second = lower(graph_of((64,), {"k": 1.0}), Limits()).steps
    assert "RWStructuredBuffer<float> part;" in first.interface
    assert first.bindings[1] == second.bindings[0]
    assert second.defines["PASS"] == 1 and second.params["cml_p_scale"] == 0.5


def test_a_bare_name_may_be_one_of_the_engine_s_files():
    with pytest.raises(OperatorError, match=r"'conv\.hlsl' has no function `void kernel"):
        cml.register(spec(kernel=cml.Kernel("conv.hlsl")))
