"""Tests that a cooked file gives bit-identical results to its model and is run without a
compiler."""

from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cooked import PROFILES, cook
from cml_engine.cooked.schema import F16
from cml_engine.integer import run_digest
from cml_engine.ir.limits import Limits
from tests.fixtures import no_compiler
from tests.fixtures.cooked import (
    HALVES,
    counter,
    small_inputs,
    small_model,
    wide_model,
    with_wgsl,
)
from tests.fixtures.graphs import Net
from tests.fixtures.integer.networks import IntegerNet, line
from tests.fixtures.messages import raises
from tests.fixtures.operators import declare, load_expression
from tests.fixtures.results import close, same_bits
from tests.integer.test_files import INPUT, small_net

pytestmark = pytest.mark.gpu

HALF = cml.CompileOptions(storage="half")
#: loads a file from a trusted source, which is bit-identical to a session of the model
own = partial(cml.load_cooked, trusted=True)


def cooked_for(model, gpu):
    """Yields the network cooked for each profile that the device meets, and for this one alone."""
    files = [own(cook(model, [profile], golden=False)) for profile in PROFILES]
    fitting = [file for file in files if not file.cooked_form.plans[0].needs.unmet(gpu.limits)]
    assert len(fitting) > 1, "the device meets the needs of 'portable' alone"
    yield from fitting


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def data(model):
    return cook(model)


@pytest.fixture(scope="module")
def cooked(data):
    return own(data)


def test_cooked_network_is_bit_identical_to_its_model(model, cooked, backend):
    expected = cml.Session(model, backend).run(small_inputs())
    same_bits(cml.Session(cooked, backend).run(small_inputs()), expected)


def test_every_profile_agrees_with_numpy(model, gpu):
    expected = cml.Session(model, "cpu").run(small_inputs())
    for only in cooked_for(model, gpu):
        close(cml.Session(only, gpu).run(small_inputs()), expected, 1e-4)


def test_cooked_plan_has_the_costs_of_its_model(model, cooked, gpu, set_limits):
    """The cooked plan has the model's step costs and titles, so learned costs apply to both.

    Only convolutions that move floats as 64-bit integers differ: no profile has these.
    """
    plan = cml.Session(cooked, gpu, deferred=True).plan
    for int64 in {False, gpu.limits.int64}:
        set_limits(int64=int64)
        live = cml.Session(model, gpu, deferred=True).plan
        assert [s.title for s in live.steps] == [s.title for s in plan.steps]
        for step, *costs in zip(live.steps, live.step_costs(), plan.step_costs(), strict=True):
            moves_wide = any(name.startswith("WIDE_") for name in step.defines)
            assert (costs[0] != costs[1]) == moves_wide and int64 >= moves_wide


def test_variables_live_and_are_reset(backend):
    session = cml.Session(own(cook(counter())), backend)
    for expected in (6, 7, 8, 6):
        if expected == 6:
            session.reset()
        assert session.run({"x": np.ones((1, 4), np.float32)})["y"][0, 0] == expected


def test_all_types_and_empty_tensors(backend):
    text = """version 1.0;
    graph kinds(x, n, none) -> (flags, chosen, empty)
    {
    x = external<scalar>(shape = [1, 4, 3, 3]);
    n = external<integer>(shape = [2, 3]);
    none = external<scalar>(shape = [0, 3]);
    limit = variable<scalar>(shape = [1, 4], label = 'limit');
    flags = gt(x, limit);
    chosen = reshape(n, shape = [3, 2]);
    empty = relu(none);
    }
    """
    model = cml.load(cml.nnef.MemoryModel(text, {"limit": np.zeros((1, 4), np.float32)}))
    inputs = {
        "x": np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 4, 3, 3),
        "n": np.arange(-3, 3, dtype=np.int32).reshape(2, 3),
        "none": np.zeros((0, 3), np.float32),
    }
    expected = cml.Session(model, backend).run(inputs)
    same_bits(cml.Session(own(cook(model)), backend).run(inputs), expected)


def test_a_chain_that_begins_with_a_single_value_is_cooked(backend):
    net = Net(1, 3, 4, 4)
    model = net.graph("div(x, exp(neg(max_reduce(x, axes=[0, 1, 2, 3]))))")
    assert [len(node.epilogues) for node in optimize(model).nodes] == [0, 2]
    inputs = net.input()
    expected = cml.Session(model, backend).run(inputs)
    same_bits(cml.Session(own(cook(model)), backend).run(inputs), expected)


def test_16_bits_are_cooked(gpu):
    net = Net(1, 3, 12, 12)
    model = net.graph(net.conv(net.op("tanh", net.conv("x", 8)), 8))
    x = {"x": np.random.default_rng(0).standard_normal((1, 3, 12, 12), np.float32)}
    cooked = own(cook(model, options=HALF))
    session = cml.Session(model, gpu, HALF)
    expected = session.run(x)
    for options in (cml.CompileOptions(), HALF):
        got = cml.Session(cooked, gpu, options)
        same_bits(got.run(x), expected)
        assert got.plan.weights_bytes == session.plan.weights_bytes
    full = own(cook(model))
    same_bits(cml.Session(full, gpu, HALF).run(x), expected)  # planned from the graph


def test_untrusted_cooked_files_run_with_checks(data, cooked, gpu):
    stranger = cml.load_cooked(data)
    sessions = [cml.Session(graph, gpu, deferred=True) for graph in (cooked, stranger)]
    assert [step.trusted for step in sessions[0].plan.steps] == [True] * 3
    assert [step.trusted for step in sessions[1].plan.steps] == [False] * 3
    close(*(session.run(small_inputs()) for session in reversed(sessions)), 1e-5)


def test_integer_networks_have_one_result_everywhere(gpu):
    model = small_net()
    expected = cml.Session(model, "cpu").run(INPUT)
    cooked = own(cook(model))
    assert cooked.cooked_form.golden.tolerance == 0.0
    got = cml.Session(cooked, "cpu").run(INPUT)
    same_bits(got, expected)
    assert run_digest(cooked, got) == run_digest(model, expected)
    for only in cooked_for(model, gpu):
        same_bits(cml.Session(only, gpu).run(INPUT), expected)
    with raises(cml.InputError, "16-bit floats cannot hold"):
        cook(model, options=HALF)


# --- selection of a plan


def planned(cooked, limits, **more):
    """Returns the plan that a device with these limits gets from a cooked file.

    ``more`` may set ``storage`` and ``plain``.
    """

    def lowered():
        graph = optimize(small_model())
        return lower(graph, limits, choose_layout(graph))

    return cooked.cooked_form.plan(
        limits, more.get("storage", "float"), more.get("plain", True), lowered
    )


def test_the_most_demanding_plan_that_fits_is_chosen(cooked):
    large = Limits(32, 32, 1 << 30, 1 << 31, max_storage_buffers=16)
    steps = {p.profile: p.steps for p in cooked.cooked_form.plans}
    assert list(steps) == ["discrete", "portable", "software", "software-portable"]
    assert planned(cooked, large).steps == steps["discrete"]
    assert planned(cooked, Limits()).steps == steps["discrete"]  # the default limits suffice
    software = replace(large, software=True, subgroup_size=8)
    assert planned(cooked, software).steps == steps["software"]
    # llvmpipe with vectors of 128 bits, SwiftShader, and a driver without subgroups
    swiftshader = Limits(256, 256, 1 << 30, 1 << 30, max_storage_buffers=10, software=True)
    for other in (
        replace(software, subgroup_size=4),
        replace(swiftshader, subgroup_size=4),
        replace(swiftshader, subgroup_size=8),
        Limits(software=True),
    ):
        assert planned(cooked, other).steps == steps["software-portable"]


def test_a_software_driver_that_gets_a_plan_for_hardware_is_told(model, cooked, caplog):
    limits = Limits(software=True, subgroup_size=4)
    caplog.set_level("INFO", "cml_engine.cooked.load")
    planned(cooked, limits)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "plan 'software-portable'; 'software': it needs" in record.message
    caplog.clear()
    planned(own(cook(model, ["portable", "software"])), limits)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("plan 'portable', which is made for hardware", "; 'software': it needs",
                  "--devices software-portable"):  # fmt: skip
        assert words in record.message


def test_where_no_plan_fits_the_graph_is_planned_by_the_files_kernels(model, gpu):
    portable = own(cook(model, ["portable"]))
    plan = planned(portable, Limits(storage_offset_alignment=512))
    assert all(step.cooked for step in plan.steps)
    assert all(b.offset % 512 == 0 for step in plan.steps for b in step.bindings)


def test_missing_profile_error_says_what_to_cook(model):
    software = own(cook(model, ["software"]))
    with pytest.raises(cml.StaleArtifact, match=r"portable.*any device") as error:
        planned(software, Limits())
    assert "storage offsets" in str(error.value) or "subgroup" in str(error.value)
    player = own(cook(model, ["software"], player=True))
    with raises(cml.StaleArtifact, "'software': it needs"):
        planned(player, Limits())


def test_a_file_for_players_has_no_graph(model, data, gpu):
    file = cook(model, player=True)
    assert len(file) < len(data)
    player = own(file)
    expected = cml.Session(model, gpu).run(small_inputs())
    same_bits(cml.Session(player, gpu).run(small_inputs()), expected)
    with raises(cml.StaleArtifact, "no graph for the CPU"):
        cml.Session(player, "cpu")


def test_a_file_for_browsers_has_no_spirv(model, data, gpu):
    file = cook(model, browser=True)
    assert len(file) < 0.8 * len(data)
    forms = own(file), own(data)
    assert not any(kernel.has_spirv for kernel in forms[0].cooked_form.kernels.values())
    for name in ("has_wgsl", "flags"):
        kernels = [form.cooked_form.kernels.values() for form in forms]
        assert len({tuple(getattr(k, name) for k in each) for each in kernels}) == 1
    results = (cml.Session(form, gpu).run(small_inputs()) for form in forms)
    close(*results, 1e-5)


def test_unsupported_calls_on_a_cooked_network_are_refused(cooked, gpu, tmp_path):
    with raises(cml.InputError, "passes have run"):
        cml.Session(cooked, "cpu", cml.CompileOptions(without=frozenset({"fuse"})))
    with raises(cml.InputError, "is cooked: save"):
        cml.save(cooked, tmp_path / "again.nnef")
    with raises(cml.InputError, "cooked already"):
        cook(cooked)
    with raises(cml.InputError, "does not know how it was loaded"):
        cml.Session(cooked, "cpu").reshaped({"image": (1, 3, 8, 8)})
    with raises(cml.InputError, "devices: wanted some of"):
        cook(small_model(), ["mobile"])
    with raises(cml.InputError, "devices: wanted some of"):
        cook(small_model(), [])


def test_invalid_untrusted_wgsl_raises_cml_error(model, gpu):
    """Untrusted WGSL that does not compile or binds other resources raises a ``CmlError``."""
    data = cook(model, golden=False)
    for text in ("fn main( {", "@compute @workgroup_size(1) fn main() { var x: i32 = 1.5; }",
                 "@group(0) @binding(0) var t: texture_2d<f32>; @compute @workgroup_size(1) "
                 "fn main() { _ = textureLoad(t, vec2(0), 0); }", "// none"):  # fmt: skip
        graph = cml.load_cooked(with_wgsl(data, text))
        with pytest.raises(cml.CmlError):
            cml.Session(graph, gpu).run(small_inputs())
    same_bits(cml.Session(own(data), gpu).run(small_inputs()),
              cml.Session(model, gpu).run(small_inputs()))  # fmt: skip


def test_digest_of_the_model_does_not_depend_on_its_file(tmp_path):
    text = "version 1.0;\ngraph g(x) -> (y)\n{ x = external<scalar>(shape = [4]); y = %s; }\n"
    files = {"a.nnef": "relu(x)", "b.nnef": "\n relu(x)", "c.nnef": "sqr(x)"}
    digests = []
    for name, expression in files.items():
        (tmp_path / name).write_text(text % expression)
        cooked = own(cook(cml.load(tmp_path / name), ["portable"], golden=False))
        digests.append(cooked.cooked_form.meta["model"])
    assert digests[0] == digests[1] != digests[2]


# --- operators of a game's own


def test_game_kernels_are_cooked_without_numpy_functions(gpu, own_operators):
    source = "void kernel(uint i) { if (i < x_size) y[i] = x[i] * x[i]; }"
    declare(source, "squares", cpu=lambda attrs, x: x * x)
    x = {"x": np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)}
    model = load_expression("squares(x)", 1, 4, 4, 4)
    expected = cml.Session(model, gpu).run(x)
    data = cook(model)
    ops.unregister("squares")
    cooked = own(data)
    assert cooked.cooked_form.meta["custom"] == ["squares"]
    same_bits(cml.Session(cooked, gpu).run(x), expected)
    with pytest.raises(cml.ModelError, match=r"squares.*NumPy functions.*--ops"):
        cml.Session(cooked, "cpu")


def test_plan_of_16_bit_arithmetic_is_refused_where_the_device_has_none(
    gpu, set_limits, own_operators
):
    declare("void kernel(uint i) { half v = half(x[i]); y[i] = v * v; }", "squares")
    cooked = own(cook(load_expression("squares(x)", 1, 4, 4, 4), player=True))
    ops.unregister("squares")
    set_limits(half_arithmetic=False)
    with raises(cml.StaleArtifact, "compute in 16 bits, which the device does not"):
        cml.Session(cooked, gpu)


def test_16_bit_arithmetic_has_plans_of_its_own_for_hardware():
    cooked = own(cook(wide_model(24), ["discrete", "software-portable"], HALVES, golden=False))
    artifact = cooked.cooked_form
    names = [plan.profile for plan in artifact.plans]
    assert names == ["discrete-f16", "discrete", "software-portable"]
    assert [any(k.flags & F16 for k in p.used) for p in artifact.plans] == [True, False, False]
    in_floats = own(cook(wide_model(24), ["discrete"], HALF, golden=False)).cooked_form
    assert artifact.plans[1].steps == in_floats.plans[0].steps
    for limits, wanted in (
        (Limits(half_arithmetic=True), "discrete-f16"),
        (Limits(), "discrete"),
        (Limits(half_arithmetic=True, software=True), "software-portable"),
    ):
        assert artifact.choose(limits)[0].profile == wanted
    _, reasons = artifact.choose(Limits())
    assert "'discrete-f16': its kernels compute in 16 bits" in reasons[0]


def test_network_without_16_bit_products_has_no_second_plan():
    net = Net(1, 4, 8, 8)
    model = net.graph(net("softmax(mul(x, random(1, 4)), axes=[1])"))
    cooked = own(cook(model, ["discrete"], HALVES, golden=False))
    assert [plan.profile for plan in cooked.cooked_form.plans] == ["discrete"]


def test_16_bit_arithmetic_is_that_of_a_live_session(gpu, set_limits):
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    model, x = wide_model(24), np.random.default_rng(1).random((1, 8, 24, 24), np.float32)
    data = cook(model, ["discrete"], HALVES)
    set_limits(**asdict(PROFILES["discrete"].with_f16.limits))
    expected = cml.Session(model, gpu, HALVES).run({"x": x})
    with pytest.raises(AssertionError):
        same_bits(cml.Session(model, gpu, HALF).run({"x": x}), expected)
    for options in (HALVES, HALF, cml.CompileOptions()):
        session = cml.Session(own(data), gpu, options)
        assert all(step.cooked for step in session.plan.steps)
        same_bits(session.run({"x": x}), expected)
    golden = own(data).cooked_form.golden
    off = golden.differences(cml.Session(own(data), gpu).run(golden.inputs))
    assert 0 < max(off.values()) < 0.5
    set_limits(half_arithmetic=False)
    in_floats = cml.Session(own(data), gpu)
    assert "half" not in " ".join(step.cooked.kernel.label for step in in_floats.plan.steps)


# --- without a compiler


def test_neither_the_compiler_nor_a_cache_nor_hlsl_is_needed(model, data, gpu, tmp_path):
    (tmp_path / "net.cml").write_bytes(data)
    got = no_compiler.run(tmp_path / "net.cml", small_inputs())
    same_bits(got, cml.Session(model, gpu).run(small_inputs()))


# --- sample inputs and outputs: their ranges and their tolerance

#: networks that magnify rounding errors, each in a different operator
MAGNIFYING = {
    "a mean of equal terms": """
        x = external<scalar>(shape = [2, 512]);
        one = add(mul(x, 0.0), 0.1);
        y = mul(sub(mean_reduce(one, axes = [1]), 0.1), 100000.0);""",
    "a normalisation of nearly equal terms": """
        x = external<scalar>(shape = [1, 4, 16, 16]);
        near = add(mul(x, 0.01), 1.0);
        m, v = moments(near, axes = [2, 3]);
        y = div(sub(near, m), sqrt(add(v, 0.00001)));""",
    "a normalisation of a few integers": """
        n = external<integer>(shape = [1, 64]);
        x = mul(cast<scalar>(n), 0.1);
        m, v = moments(x, axes = [1]);
        y = mul(div(sub(x, m), sqrt(add(v, 0.00001))), 1000.0);""",
    "a long product": """
        x = external<scalar>(shape = [4, 2048]);
        y = mul(sub(matmul(x, x, transposeB = true), 680.0), 10.0);""",
    "large windows": """
        x = external<scalar>(shape = [1, 2, 40, 40]);
        m = avg_pool(x, size = [1, 1, 33, 33], padding = [(0,0), (0,0), (0,0), (0,0)]);
        y = mul(sub(m, 0.5), 1000.0);""",
}


def built(text, **variables):
    inputs = ", ".join(name for name in ("x", "n") if f"{name} = external" in text)
    operators = "extension KHR_enable_operator_expressions;"
    document = f"version 1.0;\n{operators}\ngraph net({inputs}) -> (y)\n{{{text}\n}}\n"
    return cml.load(cml.nnef.MemoryModel(document, variables))


def worst(cooked, gpu):
    golden = cooked.cooked_form.golden
    return max(golden.differences(cml.Session(cooked, gpu).run(golden.inputs)).values())


@pytest.mark.parametrize("name", MAGNIFYING)
def test_wrong_results_are_found(name, gpu):
    cooked = cml.load_cooked(cook(built(MAGNIFYING[name]), ["software"]))
    golden = cooked.cooked_form.golden
    wrong = {n: a + 0.3 * (1 + np.abs(a)) for n, a in golden.outputs.items()}
    assert max(golden.differences(wrong).values()) > 1


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_indices_reach_every_row(rows, gpu):
    text = f"""
        n = external<integer>(shape = [20, 50]);
        t = variable<scalar>(shape = [{rows}, 4], label = 't');
        y = gather(t, reshape(n, shape = [1000]), axis = 0);"""
    table = np.random.default_rng(0).standard_normal((rows, 4), np.float32)
    cooked = cml.load_cooked(cook(built(text, t=table), ["software"]))
    indices = cooked.cooked_form.golden.inputs["n"]
    assert (indices.min(), indices.max()) == (0, rows - 1)
    assert worst(cooked, gpu) <= 1


def test_golden_check_tolerates_few_class_changes(gpu):
    """A float network may give another class at 1 of 10,000 positions, but not at 20.

    Some positions lie on a class boundary, so the golden pair bounds the share of differences.
    """
    text = """
        x = external<scalar>(shape = [1, 2, 100, 100]);
        y = argmax_reduce(x, axes = [1]);"""
    golden = cml.load_cooked(cook(built(text), ["software"])).cooked_form.golden
    few, many = golden.outputs["y"].copy(), golden.outputs["y"].copy()
    few[0, 0, 0, :2] ^= 1
    many[0, 0, :20] ^= 1
    assert golden.differences({"y": few})["y"] <= 1 < golden.differences({"y": many})["y"]
    strict = replace(golden, tolerance=0.0)
    assert strict.differences({"y": few})["y"] == np.inf


def test_golden_inputs_cover_the_range_of_integer_networks():
    net = IntegerNet()
    x = net.input("x", (1, 4, 50, 50), 0.5)
    w = net.weight("w", np.arange(-8, 8).reshape(4, 4, 1, 1), 0.01)
    model = net.graph(net.op("conv", x, w, net.weight("b", [[0]], 0.005, 32), to=line(0.5)))
    values = cml.load_cooked(cook(model, ["software"])).cooked_form.golden.inputs["x"]
    assert values.min() < -63 and values.max() > 62
