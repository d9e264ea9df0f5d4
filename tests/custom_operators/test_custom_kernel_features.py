"""Tests of what a game's kernel may declare: layouts, 16 bits, dimensions of threads."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cml_engine as cml
from cml_engine import ops
from cml_engine.errors import OperatorError
from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import C4, C4H
from cml_engine.ops.declaration.registry import lookup
from cml_engine.testing import Case, check, variants
from tests.fixtures.graphs import Net, check_session
from tests.fixtures.operators import declare

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_operators")]
SQUARE = "void kernel(uint thread) { x_type v = x[thread]; y[thread] = v * abs(v); }"
#: reads a float4 of channels, or a number, of its left neighbour and of its own place
LEFT = """
void kernel(uint thread) {
    x_type left = 0;
    uint d = x_rank - 1;
    if (x_coord(thread, d) > 0) { left = x[thread - x_stride(d)]; }
    y[thread] = x[thread] - left;
}
"""
#: reads either layout and writes either: one thread for each channel and position
EITHER = """
#ifdef x_in_blocks
float at(uint n, uint c, uint p) { return x[n * x_stride(0) + c / 4 * x_stride(1) + p][c % 4]; }
#else
float at(uint n, uint c, uint p) { return x[n * x_stride(0) + c * x_stride(1) + p]; }
#endif
void kernel(uint thread) {
    uint n = y_coord(thread, 0);
    uint c = y_coord(thread, 1);
    uint p = thread % y_stride(1);
#ifdef y_in_blocks
    float4 v = 0;
    for (uint k = 0; k < min(y_channels - 4 * c, 4u); ++k) { v[k] = 2 * at(n, 4 * c + k, p); }
    y[thread] = v;
#else
    y[thread] = 2 * at(n, c, p);
#endif
}
"""
WITHIN = ops.Tolerance(1e-6, 1e-6, "one product")


def own(source, cpu, shapes=((1, 8, 3, 5), (1, 6, 3, 5), (7,)), **kernel):
    cases = [Case((shape,)) for shape in shapes]
    declare(source, cpu=cpu, kernel=kernel, cases=cases, tolerance=WITHIN)


def square(attrs, x):
    return x * np.abs(x)


def left_difference(attrs, x):
    return np.diff(x, axis=-1, prepend=np.float32(0)).astype(np.float32)


KERNELS = {
    "same": (SQUARE, square, {"layouts": "same", "half": "each"}, {C4, C4H}),
    "same_alike": (LEFT, left_difference, {"layouts": "same", "half": "alike"}, {C4, C4H}),
    "any": (EITHER, lambda attrs, x: 2 * x, {"layouts": "any", "half": "each"}, {C4, C4H}),
    "float_only": (SQUARE, square, {"layouts": "same"}, {C4}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_reads_and_writes_every_layout_that_it_declares(name, gpu):
    source, cpu, declared, layouts = KERNELS[name]
    shapes = ((1, 8, 3, 5), (2, 6, 3, 5), (7,))
    own(source, cpu, shapes[:2] if name == "any" else shapes, **declared)
    check("own", gpu)
    seen = {layout for *_, used in variants(lookup("own")) for layout in used.values()}
    assert seen == layouts


def three_convolutions():
    """Returns convolutions with a game's operator between them."""
    net = Net(1, 8, 9, 9)
    y = net.conv("x", 8)
    return net.graph(net.conv(net.op("own", y), 8))


@pytest.mark.parametrize(
    ("declared", "storage", "layout"),
    [
        ({}, "float", "plain"),
        ({"layouts": "same"}, "float", C4),
        ({"layouts": "same"}, "half", C4),
        ({"layouts": "same", "half": "each"}, "half", C4H),
    ],
)
def test_plan_stores_maps_as_the_kernel_declares(declared, storage, layout, gpu, rng):
    own(SQUARE, square, **declared)
    x = rng.standard_normal((1, 8, 9, 9), np.float32)
    error = 2e-2 if storage == "half" else 1e-4
    plan = check_session(three_convolutions(), gpu, {"x": x}, error, storage=storage).plan
    step = next(step for step in plan.steps if step.op == "own")
    assert {plan.layouts.get(b.tensor, "plain") for b in step.bindings} == {layout}
    assert len(plan.steps) == 3


def test_check_detects_a_kernel_that_ignores_blocks(gpu):
    wrong = "void kernel(uint thread) { y[thread] = x[thread].x; }"
    own(wrong, lambda attrs, x: x, ((1, 8, 2, 1),), layouts="same")
    with pytest.raises(AssertionError, match="'c4'.*differ"):
        check("own", gpu)


# ---------------------------------------------------------------- dimensions of threads

PLANES = """
void kernel(uint2 thread) {
    for (uint c = 0; c < y_size / (y_shape(2) * y_shape(3)); ++c) {
        uint row = c * y_stride(1);
        uint at = row + thread.y * y_stride(2) + y_shape(3) - 1 - thread.x;
        y[row + thread.y * y_stride(2) + thread.x] = x[at];
    }
}
"""
#: transposes tiles of 4 x 4 in groupshared memory
TILES = """
groupshared float tile[4][4];
void kernel(uint3 group, uint3 lane) {
    uint2 size = uint2(x_shape(2), x_shape(1));
    uint2 from = 4 * group.xy + lane.xy;
    bool inside = all(from < size);
    uint plane = group.z * size.x * size.y;
    if (inside) { tile[lane.y][lane.x] = x[plane + from.y * size.x + from.x]; }
    GroupMemoryBarrierWithGroupSync();
    uint2 to = 4 * group.yx + lane.xy;
    if (all(to < size.yx)) { y[plane + to.y * size.y + to.x] = tile[lane.x][lane.y]; }
}
"""
CUBE = "void kernel(uint3 t) { uint i = (t.z * y_shape(1) + t.y) * y_shape(2) + t.x; y[i] = x[i]; }"


def swapped(attrs, x):
    return Fact(x.dtype, (x.shape[0], x.shape[2], x.shape[1]))


DIMENSIONS = {
    "2d": (
        PLANES,
        lambda attrs, x: x[..., ::-1],
        ops.same_as(0),
        {"group": (8, 4), "threads": lambda attrs, x: (x.shape[3], x.shape[2])},
        ((1, 3, 21, 13), (2, 1, 4, 8)),
    ),
    "3d_groups": (
        TILES,
        lambda attrs, x: x.transpose(0, 2, 1),
        swapped,
        {"group": (4, 4, 1), "threads": lambda attrs, x: (x.shape[2], x.shape[1], x.shape[0])},
        ((3, 10, 6), (1, 4, 4)),
    ),
    "3d_default": (
        CUBE,
        lambda attrs, x: x,
        ops.same_as(0),
        {"group": (4, 2, 2)},
        ((5, 7, 9),),
    ),
}


@pytest.mark.parametrize("name", DIMENSIONS)
def test_threads_of_several_dimensions_run_in_any_partition(name, gpu):
    source, cpu, infer, declared, shapes = DIMENSIONS[name]
    declare(
        source,
        infer=infer,
        cpu=cpu,
        kernel=declared,
        cases=[Case((shape,)) for shape in shapes],
        tolerance=ops.Tolerance(0, 0, "moves values"),
    )
    check("own", gpu, partitions=4)


def test_attribute_may_be_called_threads(gpu):
    source = "void kernel(uint thread) { y[thread] = threads * x[thread]; }"
    declare(
        source,
        "fragment own(x: tensor<scalar>, threads: scalar = 3.0) -> (y: tensor<scalar>)",
        cpu=lambda attrs, x: attrs.threads * x,
        cases=[Case(((300,),))],
    )
    check("own", gpu)


def test_wrong_threads_are_refused_with_the_dimensions(gpu):
    own(PLANES, lambda attrs, x: x, group=(8, 8), threads=lambda attrs, x: 4)
    net = Net(1, 1, 4, 4)
    with pytest.raises(OperatorError, match="gave 4; wanted 2 whole numbers"):
        cml.Session(net.graph("own(x)"), gpu)


# ---------------------------------------------------------------- in place

ADD = "void kernel(uint i) { x_type v = x[i]; y[i] = v * abs(v) + b[i % b_size]; }"
X_AND_B = "fragment own(x: tensor<scalar>, b: tensor<scalar>) -> (y: tensor<scalar>)"


CASES = [Case(((1, 8, 3, 5), (1,))), Case(((4100,), (7,)))]


def own_in_place(source=ADD, cases=CASES, **kernel):
    declare(
        source,
        X_AND_B,
        cpu=lambda attrs, x, b: x * np.abs(x) + np.resize(b, x.shape),
        kernel={"in_place": "x", **kernel},
        cases=cases,
        tolerance=WITHIN,
    )


def chain_of_own(read_again=False, output=False):
    """Returns a network of two of a game's operators behind a matrix product."""
    net = Net(1, 64, 32)
    x = net.op("matmul", "x", net.random(1, 32, 48))
    y = net.op("own", x, net.constant(np.ones(3, np.float32)))
    z = net.op("own", net.op("reshape", y, shape=[64, 48]), net.constant(np.ones(5, np.float32)))
    if read_again:
        z = net.op("add", z, net.op("reshape", x, shape=[64, 48]))
    return net.graph(z, y) if output else net.graph(z)


def shared_results(session):
    """Returns the number of steps of a game's operator that write where they read."""
    own_steps = [step for step in session.plan.steps if step.op == "own"]
    return sum(len(step.bindings) == 2 for step in own_steps)


@pytest.mark.parametrize("kernel", [{}, {"layouts": "same"}, {"layouts": "same", "half": "alike"}])
def test_result_takes_the_memory_of_its_operand(kernel, gpu):
    if kernel:
        own_in_place(ADD.replace("b[i % b_size]", "b[0]"), CASES[:1], **kernel)
    else:
        own_in_place()
    check("own", gpu, partitions=4)


@pytest.mark.parametrize(
    ("how", "options", "shared"),
    [
        ({}, {}, 2),
        ({"read_again": True}, {}, 1),
        ({"output": True}, {}, 1),
        ({}, {"arena_limit": 40 << 10}, 2),
    ],
)
def test_memory_is_shared_only_if_nothing_reads_the_operand_later(how, options, shared, gpu, rng):
    own_in_place()
    inputs = {"x": rng.standard_normal((1, 64, 32), np.float32)}
    without = frozenset({"fuse", "chains"})
    session = check_session(chain_of_own(**how), gpu, inputs, 1e-4, without=without, **options)
    assert shared_results(session) == shared
    again = session.run(inputs)
    assert all((array == again[name]).all() for name, array in session.run(inputs).items())


TWO_INPUTS = """version 1.0;
graph net(x, b) -> (y)
{
    x = external<scalar>(shape = [6, 8]); b = external<scalar>(shape = [1]);
    e = exp(x);
    y = own(e, b);
}
"""


def test_values_that_a_later_run_needs_are_not_overwritten(gpu, rng):
    own_in_place()
    graph = cml.load(cml.nnef.MemoryModel(TWO_INPUTS, {}))
    session = cml.Session(graph, gpu, retain=True)
    assert shared_results(session) == 0
    x = rng.standard_normal((6, 8), np.float32)
    for inputs in ({"x": x, "b": np.ones(1, np.float32)}, {"b": np.zeros(1, np.float32)}):
        (got,) = session.run(inputs).values()
        v = np.exp(x)
        assert_allclose(got, v * v + inputs["b"], rtol=1e-5)


def test_input_and_tensor_that_is_read_twice_keep_their_memory(gpu):
    own_in_place()
    net = Net(5, 7)
    graph = net.graph(f"own(own(x, {net.constant(np.ones(1))}), t0)")
    assert shared_results(check_session(graph, gpu, net.input())) == 0


def test_check_detects_a_kernel_that_reads_what_others_write(gpu):
    own(LEFT, left_difference, ((4100,),), in_place="x")
    with pytest.raises(AssertionError, match="differ"):
        check("own", gpu)


# ---------------------------------------------------------------- alternatives


def own_kernels(*, fault=False, **costs):
    """Declares an operator of three kernels: for any node, for blocks, and for small tensors."""
    plain = SQUARE.replace("x_type", "float")
    declare(
        cpu=square,
        kernel=cml.Kernel(
            source=SQUARE,
            name="general",
            layouts="same",
            alternatives=[
                cml.Kernel(
                    source=plain,
                    name="plain",
                    cost=lambda op: costs.get("plain", 2),
                ),
                cml.Kernel(
                    source=plain.replace("abs(v)", "(v + 1)") if fault else plain,
                    name="small",
                    cost=lambda op: 0.5 if op.inputs[0].size < 100 else None,
                ),
            ],
        ),
        cases=[Case(((1, 8, 3, 5),)), Case(((7,),))],
        tolerance=WITHIN,
    )


@pytest.mark.parametrize(
    ("shape", "costs", "kernel"),
    [((300,), {}, "general"), ((300,), {"plain": 0.7}, "plain"), ((30,), {"plain": 0.7}, "small")],
)
def test_the_cheapest_kernel_that_accepts_a_node_computes_it(shape, costs, kernel, gpu):
    own_kernels(**costs)
    net = Net(*shape)
    session = cml.Session(net.graph("own(x)"), gpu)
    (step,), (choice,) = session.plan.steps, session.plan.choices
    assert (step.variant, choice.chosen) == (kernel, kernel)
    assert f"({kernel})" in str(step)
    report = session.rank(runs=1)
    assert report.nodes[0].kernel == kernel and f"  kernel {kernel}" in str(report)
    (got,) = session.run(net.input()).values()
    assert got.shape == shape


def test_kernels_that_lack_the_layout_of_the_plan_are_left_out(gpu):
    own_kernels(plain=0.1)
    session = cml.Session(three_convolutions(), gpu)
    assert [s.variant for s in session.plan.steps if s.op == "own"] == ["general"]


def test_caller_decides_the_kernel(gpu):
    own_kernels()
    net = Net(30)
    graph = net.graph("own(x)")
    options = cml.CompileOptions(decide={graph.outputs[0]: {"kernel": "plain"}})
    assert cml.Session(graph, gpu, options).plan.steps[0].variant == "plain"


def test_check_runs_every_kernel(gpu):
    own_kernels()
    assert check("own", gpu).runs == 2 + 1 + 3
    ops.unregister("own")
    own_kernels(fault=True)
    with pytest.raises(AssertionError, match="kernel 'small'.*differ"):
        check("own", gpu)


def test_node_that_no_kernel_accepts_is_refused(gpu):
    never = cml.Kernel(source=SQUARE, name="never", cost=lambda op: None)
    declare(kernel=replace(never, alternatives=[replace(never, name="b")]))
    net = Net(30)
    with pytest.raises(cml.ModelError, match=r"none of its kernels \(never, b\) accepts it"):
        cml.Session(net.graph("own(x)"), gpu, cml.CompileOptions(cpu="refuse"))


# ---------------------------------------------------------------- arithmetic in 16 bits

#: four products of positive numbers, each rounded
POWER = """
void kernel(uint thread) {
    REAL v = REAL(x[thread]);
    REAL s = v * v;
    for (uint k = 0; k < 3; ++k) { s = s * v; }
    y[thread] = s;
}
"""
#: sums of products: factors in 16 bits, their products and sums in 32
ROWS = """
void kernel(uint thread) {
    uint k = b_shape(0), n = b_shape(1);
    float sum = 0;
    for (uint i = 0; i < k; ++i) {
        sum += float(REAL(x[thread / n * k + i])) * float(REAL(b[i * n + thread % n]));
    }
    y[thread] = sum;
}
"""
X_TIMES_B = "fragment own(x: tensor<scalar>, b: tensor<scalar>) -> (y: tensor<scalar>)"
#: the largest relative error of rounding to 11 bits
ROUNDED = 2.0**-11


def in_either(source, gain=0.5):
    """Returns a kernel in 32 bits, with an alternative in 16 on devices that have them."""
    half = cml.Kernel(
        source=source,
        name="half",
        defines={"REAL": "half"},
        cost=lambda op: gain if op.limits.half_arithmetic else None,
    )
    return cml.Kernel(source=source, name="float", defines={"REAL": "float"}, alternatives=[half])


def run_half(graph, gpu, inputs):
    """Runs a graph of one operator and returns its result and the kernel's name."""
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    session = cml.Session(graph, gpu)
    return session.run(inputs)["t0"].astype(np.float64), session.plan.steps[0].variant


def test_each_operation_in_16_bits_rounds_once(gpu, rng):
    declare(kernel=in_either(POWER))
    net = Net(4000)
    x = rng.uniform(0.5, 2, 4000).astype(np.float32)
    got, kernel = run_half(net.graph("own(x)"), gpu, {"x": x})
    off = np.abs(got / x.astype(np.float64) ** 5 - 1).max()
    # four products, and the rounding of the input, which counts five times
    assert kernel == "half" and 2e-4 < off < (1 + ROUNDED) ** 9 - 1


def test_products_in_16_bits_with_sums_in_32_stay_within_the_bound(gpu, rng):
    declare(
        signature=X_TIMES_B,
        infer=lambda attrs, x, b: Fact("scalar", (x.shape[0], b.shape[1])),
        kernel=in_either(ROWS),
    )
    net = Net(16, 256)
    b = rng.uniform(-1, 1, (256, 16)).astype(np.float32)
    x = rng.uniform(-1, 1, (16, 256)).astype(np.float32)
    graph = net.graph(net.op("own", "x", net.constant(b)))
    got, kernel = run_half(graph, gpu, {"x": x})
    terms = np.abs(x).astype(np.float64) @ np.abs(b)
    off = (np.abs(got - x.astype(np.float64) @ b) / terms).max()
    # some drivers multiply in 32 bits and keep more than is promised
    assert kernel == "half" and off < 2.01 * ROUNDED


def test_device_without_16_bit_arithmetic_takes_the_other_kernel(gpu, set_limits):
    declare(kernel=in_either(POWER))
    set_limits(half_arithmetic=False)
    net = Net(40)
    assert cml.Session(net.graph("own(x)"), gpu).plan.steps[0].variant == "float"
