"""Tests that public calls refuse arguments of a wrong type with clear errors.

Every parameter of every public call is tried with a table of wrong values.
"""

import warnings
from decimal import Decimal
from fractions import Fraction
from inspect import signature

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine import ops
from cml_engine.errors.arguments import shortened
from tests.fixtures.frames.host import SHAPE, Host, conv_net

IMAGE = np.zeros(SHAPE, np.float32)
WIDE = {"x": np.zeros((1, 8, 48, 48), np.float32)}


class Odd:
    """A type that no parameter accepts."""


WRONG = (
    None, 3, -1, 0, 2.5, float("nan"), float("inf"), 10**400, "text", b"bytes", True, [], [1],
    ["x"], (), {}, {"x": None}, {"x": Odd()}, {"x": "text"}, {"x": [["a"]]}, {3: IMAGE},
    {"x": IMAGE, "zz": IMAGE}, {"x": [[1, 2], [3]]}, Odd(), Decimal(2), Decimal("nan"),
    Fraction(1, 3), np.float32(3), np.array(2.0), np.zeros(3), 1j, {"x"}, iter([1]),
    np.array([None]), np.zeros((2, 2), "U3"), "a/b\0c", range(3), [None], [{}], [(1, 2)],
)  # fmt: skip


def calls(gpu):
    """Returns the public calls by name, each as a function and arguments that it accepts."""
    session, on_cpu = (cml.Session(conv_net(), backend) for backend in (gpu, "cpu"))
    host = Host(gpu, budget_ms=50.0)
    scheduler = host.scheduler
    job = scheduler.submit(session, {"x": IMAGE})
    host.finish(job)
    encoder, timer = gpu.device.create_command_encoder(), gpu.frame_timer(["pass"])
    buffer = gpu.device.create_buffer(size=64, usage=wgpu.BufferUsage.COPY_SRC)
    found = {
        "FrameScheduler": (cml.FrameScheduler, {"gpu": gpu}),
        "submit": (scheduler.submit, {"session": session, "inputs": {"x": IMAGE}}),
        "submit_periodic": (
            scheduler.submit_periodic,
            {"session": session, "make_inputs": dict, "period_ms": 9.0},
        ),
        "resume": (scheduler.resume, {}),
        "encode": (scheduler.encode, {"encoder": encoder}),
        "render_took": (scheduler.render_took, {}),
        "frame_took": (scheduler.frame_took, {}),
        "submit_tiled": (
            scheduler.submit_tiled,
            {"session": session, "inputs": WIDE, "tile": 24, "overlap": 2},
        ),
        "run_tiled": (
            cml.run_tiled, {"session": session, "inputs": WIDE, "tile": 24, "overlap": 2},
        ),
        "read": (job.read, {}),
        "tensor": (job.tensor, {}),
        "output": (lambda name: scheduler.submit(session, {"x": job.output(name)}), {}),
        "copy_to_texture": (job.copy_to_texture, {"encoder": encoder, "name": "y", "texture": 0}),
        "Session": (cml.Session, {"graph": conv_net(), "backend": "cpu"}),
        "Gpu": (cml.Gpu, {}),
        "frame_timer": (gpu.frame_timer, {"names": ["pass"]}),
        "writes": (timer.writes, {}),
        "gpu.tensor": (
            gpu.tensor, {"buffer": buffer, "offset": 0, "fact": ops.Fact("scalar", (2,))},
        ),
        "allocate": (
            lambda nbytes, usage, owner, category, alignment=None: gpu.memory.allocate(
                nbytes, usage, owner=owner, category=category, alignment=alignment
            ).free(),
            {"nbytes": 64, "usage": 128, "owner": "a", "category": "render"},
        ),
    }  # fmt: skip
    for some in (session, on_cpu):
        for method in ("run", "reshaped", "rank", "timer", "tensor", "replace"):
            valid = {"inputs": {"x": IMAGE}} if method in ("run", "rank") else {}
            found[f"{some.backend} {method}"] = getattr(some, method), valid
    found["gpu rank_without"] = session.rank_without, {"operator": "conv", "runs": 1}
    return found


def refusals(name, call, valid, names=None):
    """Calls a function with each wrong value of each parameter.

    Returns a line for each exception that is no :class:`CmlError`.
    """
    told = []
    for parameter in names or [
        p.name
        for p in signature(call).parameters.values()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]:
        for value in WRONG:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call(**{**valid, parameter: value})
            except cml.CmlError as error:
                assert str(error)
            except Exception as error:
                told.append(f"{name}, {parameter}={shortened(repr(value))}: {error!r}")
    return told


@pytest.mark.gpu
def test_every_public_parameter_refuses_wrong_types(gpu):
    def made_and_used(**arguments):
        scheduler = cml.FrameScheduler(**arguments)
        scheduler.submit(cml.Session(conv_net(), gpu), {"x": IMAGE})
        scheduler._run_frame()
        scheduler.describe()

    told = []
    for name, (call, valid) in calls(gpu).items():
        if name == "FrameScheduler":
            told += refusals(name, made_and_used, valid, signature(call).parameters)
        else:
            told += refusals(name, call, valid)
    assert not told, "\n".join(told)


def calls_without_gpu():
    """Returns the public calls that need no GPU, as :func:`calls` does."""
    graph = conv_net()
    session = cml.Session(graph, "cpu")
    builder = cml.GraphBuilder("net")
    x = builder.input("x", SHAPE)
    making = cml.GraphBuilder("small")
    values = making.input("x", [1, 1, 4, 4])
    small = making.graph(y=making.conv(values, np.ones((1, 1, 3, 3)), 0.0))
    samples = [{"x": np.full((1, 1, 4, 4), i, np.float32)} for i in range(8)]
    integer, _ = cml.quantize(small, samples)
    words = cml.Session(integer, "cpu").run(samples[1])

    def register(**arguments):
        spec = {"name": "twice", "signature": "twice", "infer": ops.same_as(0), "cpu": print}
        ops.unregister(cml.register(cml.OpSpec(**{**spec, **arguments})).name)

    def edited(old, new):
        editor = cml.edit(graph)
        editor.replace(old, editor.relu(editor["x"]) if new is None else new)

    text = "version 1.0; graph g(x) -> (y) { x = external<scalar>(shape = [1, 2]); y = relu(x); }"
    return {
        "load": (cml.load, {"model": "net.onnx"}),
        "load of NNEF": (cml.load, {"model": "net.nnef"}),
        "load_cooked": (cml.load_cooked, {"model": b"cooked"}),
        "save": (cml.save, {"graph": graph, "path": "copy.onnx", "overwrite": True}),
        "save to NNEF": (cml.save, {"graph": graph, "path": "copy", "overwrite": True}),
        "edit": (cml.edit, {"graph": graph}),
        "GraphBuilder": (cml.GraphBuilder, {}),
        "input": (builder.input, {"name": "x", "shape": SHAPE}),
        "weights": (builder.weights, {"values": IMAGE}),
        "graph": (lambda y: builder.graph(y=y), {"y": builder.relu(x)}),
        "graph of its inputs": (lambda name: builder[name], {"name": "x"}),
        "apply": (lambda op, operand: x.apply(op, operand), {"op": "relu", "operand": x}),
        "an operand": (lambda operand: x + operand, {"operand": x}),
        "an attribute": (lambda size: builder.box(x, size=size), {"size": [1, 1, 3, 3]}),
        "replace": (edited, {"old": "y", "new": None}),
        "quantize": (cml.quantize, {"graph": small, "samples": samples}),
        "quantize_weights": (
            cml.integer.quantize_weights, {"graph": small, "samples": samples},
        ),
        "model_digest": (cml.integer.model_digest, {"graph": integer}),
        "run_digest": (cml.integer.run_digest, {"graph": integer, "outputs": words}),
        "cook": (cml.cooked.cook, {"graph": None}),
        "cook of a graph": (
            lambda devices, guesses: cml.cooked.cook(
                graph, devices, guesses=guesses, dump_kernels=0
            ),
            {"devices": ["portable"], "guesses": ()},
        ),
        "CookedLimits": (cml.cooked.CookedLimits, {}),
        "DeviceGuess": (
            cml.cooked.DeviceGuess,
            {"words": "a", "flops_per_ms": 1.0, "bytes_per_ms": 1.0, "launch_ms": 0.1},
        ),
        "LoadLimits": (cml.LoadLimits, {}),
        "LoadLimits.parse": (cml.LoadLimits.parse, {"text": "nodes=3"}),
        "FixedBudget": (cml.FixedBudget, {"ms": 2.0}),
        "SpareBudget": (cml.SpareBudget, {"frame_ms": 16.0}),
        "FirstGuess": (cml.scheduler.FirstGuess, {}),
        "CostModel": (cml.scheduler.CostModel, {}),
        "VirtualClock": (cml.scheduler.VirtualClock, {}),
        "operators_per_frame": (cml.scheduler.operators_per_frame, {"count": 3}),
        "write_trace": (
            lambda path, reports, memory, about, places: cml.scheduler.write_trace(
                path, reports, memory=memory, about=about, places=places
            ),
            {"path": "t.json", "reports": [], "memory": None, "about": None, "places": None},
        ),
        "register": (cml.register, {"spec": None}),
        "OpSpec": (register, {}, signature(cml.OpSpec).parameters),
        "unregister": (ops.unregister, {"name": "nothing"}),
        "register_rule": (ops.register_rule, {"rule": None}),
        "unregister_rule": (ops.unregister_rule, {"rule": None}),
        "load_file": (ops.load_file, {"path": "nothing.py"}),
        "check": (cml.testing.check, {"spec": "nothing"}),
        "time_interleaved": (
            lambda runs, timer: cml.testing.time_interleaved(runs, timer),
            {"runs": 0, "timer": None},
        ),
        "CompileOptions": (cml.CompileOptions, {}),
        "preset": (cml.CompileOptions.preset, {"name": "debug"}),
        "PlanOptions": (cml.testing.PlanOptions, {}),
        "Slider": (lambda **arguments: cml.Slider(**arguments).samples(), {"place": "s"},
                   signature(cml.Slider).parameters),
        "TextureInput": (
            lambda **arguments: session.run({"x": cml.TextureInput(**arguments)}),
            {"texture": Odd()}, signature(cml.TextureInput).parameters,
        ),
        "Reloader": (
            lambda **arguments: cml.Reloader(**arguments).poll(),
            {"session": session, "model": "net.nnef", "make": conv_net},
            ("session", "model", "ops", "files", "every_s", "clock"),
        ),
        "run_tiled": (
            cml.run_tiled, {"session": session, "inputs": WIDE, "tile": 24, "overlap": 2},
        ),
        "read": (cml.io.read, {"file": "x.npy", "name": "x", "fact": ops.Fact("scalar", SHAPE)},
                 ("file",)),
        "check_place": (cml.io.check_place, {"path": "a.npy"}),
        "write_outputs": (cml.io.write_outputs, {"files": {"y": "y.npy"}, "arrays": {"y": IMAGE}}),
        "MemoryModel": (
            lambda **arguments: cml.load(cml.nnef.MemoryModel(**arguments)),
            {"text": text}, ("text", "tensors", "quant", "name"),
        ),
        "signature": (cml.nnef.signature, {"name": "conv"}),
        "table_for": (cml.tuning.table_for, {"device": "a GPU"}),
        "graph_digest": (cml.distributed.graph_digest, {"graph": graph}),
        "default_workers": (cml.distributed.default_workers, {}),
        "OperatorTimes": (cml.panel.OperatorTimes, {"sessions": {}}),
        "FrameLog": (cml.panel.FrameLog, {"target_ms": 16.0, "sessions": {}}),
    }  # fmt: skip


def test_calls_that_need_no_gpu_refuse_wrong_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("net.onnx", "net.nnef"):
        cml.save(conv_net(), place)
    np.save("x.npy", IMAGE)
    told = []
    for name, entry in calls_without_gpu().items():
        told += refusals(name, *entry)
    assert not told, "\n".join(told)


#: calls with a wrong number or value that would be taken, by what the message says
WRONG_VALUES = {
    "count is 0: wanted a whole number": lambda: cml.scheduler.operators_per_frame(0),
    "aim_ms is nan": lambda: cml.FixedBudget(2.0, float("nan")),
    "flops_per_ms is -1": lambda: cml.scheduler.FirstGuess(flops_per_ms=-1),
    "the factor of 'conv' is nan": lambda: cml.scheduler.FirstGuess(kernels={"conv": np.nan}),
    "launch_ms: wanted a number": lambda: cml.cooked.DeviceGuess("a", 1.0, 1.0, float("inf")),
    "share: wanted a number of 0 to 1": lambda: cml.panel.percentile([1.0], 95),
    "target_ms: wanted milliseconds": lambda: cml.panel.FrameLog(0, {}),
    "backend: wanted 'auto' or 'gpu'": lambda: cml.distributed.default_workers("GPU"),
    "there is no output 'y'": lambda: cml.integer.run_digest(conv_net(), {"other": IMAGE}),
    "is a tensor of another builder": lambda: cml.GraphBuilder("a").graph(
        y=cml.GraphBuilder("b").input("x", [1])
    ),
}


@pytest.mark.parametrize("said", WRONG_VALUES)
def test_wrong_values_are_refused(said):
    with pytest.raises(cml.CmlError) as error:
        WRONG_VALUES[said]()
    assert said in str(error.value)


USES = {
    "run": lambda s: s.run({"x": IMAGE}),
    "reshaped": lambda s: s.reshaped({"x": SHAPE}),
    "build_ahead": lambda s: s.build_ahead(),
    "tensor": lambda s: s.tensor("y"),
    "check_inputs": lambda s: s.check_inputs({"x": IMAGE}),
    "replace": lambda s: s.replace(conv_net()),
    "reset": lambda s: s.reset(),
    "rank": lambda s: s.rank(),
    "rank_without": lambda s: s.rank_without("conv"),
    "timer": lambda s: s.timer(),
    "current_program": lambda s: s.current_program(),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_session_refuses_every_use(use):
    session = cml.Session(conv_net(), "cpu")
    session.close()
    with pytest.raises(cml.InputError, match="the session of 'net' was closed: make another"):
        USES[use](session)
    session.close()


@pytest.mark.gpu
def test_misuses_of_a_scheduler_and_a_gpu(gpu):
    host, other = Host(gpu, budget_ms=50.0), cml.Gpu()
    scheduler, session = host.scheduler, cml.Session(conv_net(), gpu)
    job = scheduler.submit(session, {"x": IMAGE})
    host.finish(job)
    closed = cml.Session(conv_net(), gpu)
    closed.close()
    peer = cml.CompileOptions(cpu="onnxruntime")
    foreign = other.device.create_command_encoder()
    usage = wgpu.TextureUsage.COPY_DST
    texture = gpu.device.create_texture(size=(24, 24, 1), format="rgba8unorm", usage=usage)
    buffer = gpu.device.create_buffer(size=64, usage=wgpu.BufferUsage.COPY_SRC)
    for said, misuse in {
        "was closed": lambda: scheduler.submit(closed, {"x": IMAGE}),
        "give deadline_ms": lambda: scheduler.submit(session, {"x": IMAGE}, admission="refuse"),
        "the encoder is of another device": lambda: scheduler.encode(foreign),
        "encoder is of another device than": lambda: job.copy_to_texture(foreign, "y", texture),
        "a tensor's dtype: wanted": lambda: gpu.tensor(buffer, 0, ops.Fact("float32", (2,))),
        "a tensor's shape: wanted": lambda: gpu.tensor(buffer, 0, ops.Fact("scalar", (-2,))),
        "cpu='onnxruntime' is for": lambda: cml.Session(conv_net(), gpu, peer),
        "the file of a shader: wanted a path": lambda: gpu.shader(3, "compute", "main"),
        "scheduler: wanted a FrameScheduler": lambda: cml.panel.Panel(3, {}),
        "sections: wanted a PanelSection": lambda: cml.panel.Panel(scheduler, {}, sections=[3]),
        "on_change: wanted a function": lambda: cml.panel.Panel(scheduler, {}, on_change=3),
        "session: wanted a Session": lambda: cml.tuning.Bench(3),
        "bench: wanted a Bench": lambda: cml.Tuning(scheduler, 3),
    }.items():
        with pytest.raises(cml.InputError) as error:
            misuse()
        assert said in str(error.value)
