"""Tests of a model's parameters that a host changes while the model runs."""

from dataclasses import replace

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine import ops
from cml_engine.cooked.cook import cook
from cml_engine.errors import InputError
from tests.fixtures.frames.host import creations
from tests.fixtures.models import SCALED
from tests.fixtures.operators import declare, load_expression

pytestmark = pytest.mark.gpu


def test_slider_has_a_value_or_its_default(backend, rng):
    strength = cml.Slider("scaled.y", 0.0, 4.0, "how much")
    graph = cml.load(cml.nnef.MemoryModel(SCALED), sliders={"strength": strength, "lift": "y.y"})
    session = cml.Session(graph, backend)
    assert session.sliders["strength"] == replace(strength, default=2.0)
    assert session.sliders["lift"].default == 0.25
    x = rng.standard_normal((1, 2, 3, 5), np.float32)
    assert_allclose(session.run({"x": x})["y"], 2 * x + 0.25, rtol=1e-6)
    for value in (3.0, np.array(3.0, np.float32)):
        moved = session.run({"x": x, "strength": value})["y"]
        assert_allclose(moved, 3 * x + 0.25, rtol=1e-6)
    other = session.reshaped({"x": (1, 2, 4, 4)})
    assert other.sliders["strength"].default == 2.0
    assert (other.run({"x": np.ones((1, 2, 4, 4)), "lift": 1})["y"] == 3).all()


@pytest.mark.parametrize(
    "sliders, says",
    [
        ({"s": "nope.y"}, "no operator of a result 'nope'"),
        ({"s": "scaled.z"}, "has no operand or attribute 'z'; it has x, y"),
        ({"s": "scaled.x"}, "no constant of the model of 1 to 16 numbers"),
        ({"x": "scaled.y"}, "has a tensor of that name"),
        ({"s": "scaled"}, "a slider's place is 'scaled', wanted a result and its operator's"),
        ({"s": 5}, "a slider's place is 5"),
        ({"s": {"low": "x"}}, "slider 'scaled.y': 'x' is not a finite number"),
        ({"s": {"high": np.inf}}, "slider 'scaled.y': inf is not a finite number"),
        ({"s": {"choices": ["soft"]}}, "wanted words with their values"),
        ({"s": {"choices": {"soft": "a"}}}, "slider 'scaled.y': 'a' is not a finite number"),
    ],
)
def test_invalid_sliders_are_refused(sliders, says):
    with pytest.raises(InputError, match=says):
        (slider,) = sliders.values()
        slider = cml.Slider("scaled.y", **slider) if isinstance(slider, dict) else slider
        cml.load(cml.nnef.MemoryModel(SCALED), sliders=dict.fromkeys(sliders, slider))


MOVABLE = """version 1.0;
graph net(x) -> (y, w)
{
    x = external<scalar>(shape = [1, 4, 6, 8]);
    weights = variable<scalar>(shape = [4, 4, 3, 3], label = 'weights');
    bent = conv(x, weights);
    leaked = leaky_relu(bent, alpha = 0.1);
    lit = select(true, leaked, x);
    tinted = mul(lit, [[1.0, 0.5, 0.25, 2.0]]);
    padded = pad(tinted, padding = [(0, 0), (0, 0), (1, 1), (1, 1)], value = 0.5);
    w = dabbed(padded, mode = 1, colour = [0.5, 1.0, 1.5], inverted = false, gain = 2.0);
    y = shifted(padded, by = 0.25);
}
"""
DABBED = """
fragment dabbed(x: tensor<scalar>, mode: integer, colour: scalar[], inverted: logical,
                gain: scalar) -> (y: tensor<scalar>);
"""
KERNEL = """
void kernel(uint i) {
    float v = x[i] * gain + colour(uint(mode));
    y[i] = inverted ? -v : v;
}
"""
#: the place of each slider, a value to move it to, and its text in the model before and after
MOVES = {
    "alpha": ("leaked.alpha", 0.75, "alpha = 0.1", "alpha = 0.75"),
    "on": ("lit.condition", False, "select(true", "select(false"),
    "tint": (
        cml.Slider("tinted.y", 0.0, 4.0), [4.0, 3.0, 2.0, 1.0],
        "[[1.0, 0.5, 0.25, 2.0]]", "[[4.0, 3.0, 2.0, 1.0]]",
    ),
    "border": ("padded.value", 0.75, "value = 0.5", "value = 0.75"),
    "mode": (
        cml.Slider("w.mode", choices={"flat": 0, "warm": 1, "hot": 2}), "hot",
        "mode = 1", "mode = 2",
    ),
    "colour": ("w.colour", [0.125, 2.0, 0.75], "[0.5, 1.0, 1.5]", "[0.125, 2.0, 0.75]"),
    "inverted": ("w.inverted", True, "inverted = false", "inverted = true"),
    "gain": ("w.gain", -3.0, "gain = 2.0", "gain = -3.0"),
    "by": ("y.by", 0.5, "by = 0.25", "by = 0.5"),
}  # fmt: skip
PLACES = {name: place for name, (place, *_) in MOVES.items()}


@pytest.fixture
def game_operators(own_operators):
    """Two operators of a game's own, one with a kernel and one with an expression."""
    declare(
        KERNEL,
        DABBED,
        cpu=lambda attrs, x: (
            (-1 if attrs.inverted else 1)
            * (x * np.float32(attrs.gain) + np.float32(attrs.colour[attrs.mode]))
        ),
    )
    shifted = "fragment shifted(x: tensor<scalar>, by: scalar) -> (y: tensor<scalar>);"
    cml.register(cml.OpSpec("shifted", signature=shifted, expression="x + {by} * 2.0"))


@pytest.fixture
def movable(game_operators):
    """Returns a function that loads the network with other values."""
    weights = np.random.default_rng(3).standard_normal((4, 4, 3, 3), np.float32)

    def load(sliders=None, replaced=("", "")):
        text = MOVABLE.replace(*replaced) if replaced[0] else MOVABLE
        return cml.load(cml.nnef.MemoryModel(text, {"weights": weights}), sliders=sliders)

    return load


@pytest.mark.parametrize("name", MOVES)
def test_moved_slider_gives_the_bits_of_a_model_with_the_value(backend, movable, rng, name):
    place, value, *texts = MOVES[name]
    x = rng.standard_normal((1, 4, 6, 8), np.float32)
    session = cml.Session(movable({name: place}), backend)
    for values, replaced in (({}, ("", "")), ({name: value}, texts), ({}, ("", ""))):
        outputs = session.run({"x": x, **values})
        expected = cml.Session(movable(replaced=replaced), backend).run({"x": x})
        for output in ("y", "w"):
            assert_array_equal(outputs[output], expected[output], output)


@pytest.mark.parametrize("retain", [False, True])
def test_moving_in_frames_builds_and_creates_nothing(gpu, host, movable, rng, monkeypatch, retain):
    session = cml.Session(movable(PLACES), gpu, retain=retain)
    reference = cml.Session(movable(PLACES), "cpu", retain=retain)
    x = rng.standard_normal((1, 4, 6, 8), np.float32)

    def check(moved):
        values = moved if retain else {"x": x, **moved}
        expected = reference.run(values)["w"]
        assert_allclose(*host.finish(host.submit(session, values), name="w"), expected, 1e-5, 1e-6)

    for moved in ({"x": x}, {"mode": "flat"}):
        check(moved)
    created = creations(gpu, monkeypatch)
    everything = {name: value for name, (_, value, *_) in MOVES.items()}
    for moved in (everything, {"gain": 7.0}, {"colour": 0.5}):
        check(moved)
    assert created == []


def test_one_slider_moves_every_dispatch_of_its_node(gpu, own_operators):
    def lower(op):
        half = op.scratch(op.inputs[0].size)
        yield op.launch(op.inputs[0].size, reads={"x": op.in_names[0]}, writes={"y": half})
        yield op.launch(op.inputs[0].size, reads={"x": half}, writes={"y": op.out_names[0]})

    signature = "fragment twice(x: tensor<scalar>, gain: scalar) -> (y: tensor<scalar>)"
    declare("void kernel(uint i) { y[i] = x[i] * gain; }", signature, kernel={"lower": lower})
    graph = load_expression("twice(x, gain = 3.0)", 1, 2, 3, 5, gain="y.gain")
    session = cml.Session(graph, gpu)
    for gain in (3.0, -2.0, 3.0):
        result = session.run({"x": np.ones((1, 2, 3, 5), np.float32), "gain": gain})["y"]
        assert (result == gain * gain).all()


def load_fixed(source, slider, **kernel):
    """Declares an operator with a slider, and returns a network of it."""
    signature = "fragment fixed(x: tensor<scalar>, k: scalar) -> (y: tensor<scalar>)"
    declare(source, signature, kernel=kernel)
    return load_expression("fixed(x, k = 0.0)", 1, 2, 3, 5, s=slider)


def with_define(op):
    reads, writes = {"x": op.in_names[0]}, {"y": op.out_names[0]}
    defines = {"SHARP": int(op.attrs.k > 0.5)}
    yield op.launch(op.inputs[0].size, reads=reads, writes=writes, defines=defines)


@pytest.mark.parametrize(
    "kernel, says",
    [
        ({"lower": with_define}, "it decides defines in the kernel's code"),
        ({"threads": lambda attrs, x: 64 + 64 * int(attrs.k)}, "the number of its workgroups"),
    ],
)
def test_attribute_that_is_compiled_is_refused(gpu, own_operators, kernel, says):
    source = "void kernel(uint i) { y[i % y_size] = x[i % x_size] * k; }"
    graph = load_fixed(source, "y.k", **kernel)
    with pytest.raises(InputError, match="slider 's': the attribute 'k' of fixed 'y'") as error:
        cml.Session(graph, gpu)
    assert "is compiled into its kernel" in str(error.value) and says in str(error.value)


def test_value_beyond_the_range_that_is_compiled_is_refused(gpu, host, own_operators):
    source = "void kernel(uint i) { y[i] = x[i] * k; }"
    graph = load_fixed(source, cml.Slider("y.k", 0.0, 0.25), lower=with_define)
    session, x = cml.Session(graph, gpu), np.ones((1, 2, 3, 5), np.float32)
    for run in (session.run, lambda inputs: host.submit(session, inputs)):
        with pytest.raises(InputError, match="cannot move from 0.0 to 2.0"):
            run({"x": x, "s": 2.0})
    assert (session.run({"x": x, "s": 0.125})["y"] == 0.125).all()


@pytest.mark.parametrize(
    "place, says",
    [
        ("padded.border", "is 'constant', which is compiled into its kernel"),
        ("padded.padding", "only numbers, truth values and flat lists of them"),
        ("bent.groups", "decides shapes, which are fixed when the network is compiled: with 0"),
        ("bent.filter", "no constant of the model of 1 to 16 numbers"),
        ("w.tone", "has no operand or attribute 'tone'; it has x, mode, colour, inverted, gain"),
    ],
)
def test_place_that_cannot_move_is_refused(movable, place, says):
    with pytest.raises(InputError, match=says):
        movable({"s": place})


@pytest.mark.parametrize(
    "value, says",
    [
        ({"mode": "cold"}, "input 'mode': wanted one of flat, warm, hot, got 'cold'"),
        ({"mode": 0.5}, "input 'mode': wanted integer"),
        ({"colour": [1, 2]}, "input 'colour': wanted 3 numbers, got 2"),
        ({"inverted": 2}, "input 'inverted': wanted logical"),
        ({"gain": True}, "input 'gain': wanted scalar"),
        ({"gain": "hot"}, "input 'gain': wanted numbers, got 'hot'"),
    ],
)
def test_wrong_values_are_refused(movable, value, says):
    session = cml.Session(movable(PLACES), "cpu")
    with pytest.raises(InputError, match=says):
        session.run({"x": np.zeros((1, 4, 6, 8), np.float32), **value})


def test_gpu_tensor_moves_a_formula_and_no_parameter(gpu, movable):
    session = cml.Session(movable({"by": "y.by", "gain": "w.gain"}), gpu)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffer = gpu.device.create_buffer(size=256, usage=usage)
    gpu.queue.write_buffer(buffer, 0, np.float32(0.5).tobytes())
    tensor, x = (
        gpu.tensor(buffer, 0, ops.Fact("scalar", ())),
        np.zeros((1, 4, 6, 8), np.float32),
    )
    expected = session.run({"x": x, "by": 0.5})["y"]
    assert_array_equal(session.run({"x": x, "by": tensor})["y"], expected)
    with pytest.raises(InputError, match="'gain' is a slider of an attribute, whose value the CPU"):
        session.run({"x": x, "gain": tensor})


def test_files_hold_sliders_of_formulas_at_most(gpu, movable, tmp_path):
    sliders = {"alpha": "leaked.alpha"}
    graph = movable(sliders)
    for name in ("net.nnef", "net.onnx"):
        with pytest.raises(InputError, match="has the slider 'alpha' of an .*again to cml.load"):
            cml.save(graph, tmp_path / name)
    cml.save(movable({}), tmp_path / "net.nnef")
    (tmp_path / "net.cml").write_bytes(cook(graph, ["portable"]))
    cooked = cml.Session(cml.load_cooked(tmp_path / "net.cml"), gpu)
    inputs = {"x": np.ones((1, 4, 6, 8), np.float32), "alpha": np.float32(0.75)}
    expected = cml.Session(graph, gpu).run(inputs)["y"]
    assert_allclose(cooked.run(inputs)["y"], expected, rtol=1e-5, atol=1e-6)
    saved = cml.Session(cml.load(tmp_path / "net.nnef", sliders=sliders), gpu)
    assert_array_equal(saved.run(inputs)["y"], expected)
    with pytest.raises(InputError, match="'gain', a parameter of a kernel"):
        cook(movable({"gain": "w.gain"}), ["portable"])
