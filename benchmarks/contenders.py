"""The measured engines: each loads the network once and returns a function that runs it once.

The function takes the inputs as NumPy arrays and returns the output as a NumPy array, so every time
includes the transfers to and from the GPU. All engines compute in 32-bit floats.

Engines bring thread pools, allocators and drivers that disturb each other, and may crash, so each
runs in a process of its own (:func:`serve`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Inputs = Mapping[str, Array]
Run = Callable[[Inputs], Array]

OURS = "cml-engine"


class Unavailable(Exception):
    """Raised if an installed engine cannot run here; the message gives the reason."""


@dataclass(frozen=True)
class Workload:
    """A folder with one network as NNEF and ONNX, its inputs and the engines' outputs.

    A network that comes from ncnn's files has these too. The properties are the paths of the files.
    Input names are the same in every format.
    """

    folder: Path

    @property
    def param(self) -> Path:
        return self.folder / "network.param"

    @property
    def weights(self) -> Path:
        return self.folder / "network.bin"

    @property
    def onnx(self) -> Path:
        return self.folder / "network.onnx"

    @property
    def nnef(self) -> Path:
        return self.folder / "network.nnef"

    def save_inputs(self, inputs: Inputs) -> None:
        np.savez(self.folder / "inputs.npz", **inputs)  # type: ignore[arg-type]

    def load_inputs(self) -> dict[str, Array]:
        """Returns the input arrays by name, in the order in which the network declares them."""
        with np.load(self.folder / "inputs.npz") as stored:
            return {name: stored[name] for name in stored.files}

    def output(self, contender: str) -> Path:
        return self.folder / f"output-{contender}.npy"


@dataclass(frozen=True)
class Loaded:
    """A contender that is ready: a function from inputs to the output, and its device's name."""

    run: Run
    device: str


@dataclass(frozen=True)
class Contender:
    """An engine to measure: ``load`` returns a function that runs a workload's network on it.

    It needs the installed ``package`` and its ``module``.
    """

    key: str
    title: str
    package: str
    module: str
    load: Callable[[Workload], Loaded]


def _threads() -> int:
    return os.cpu_count() or 1


def _load_ours(workload: Workload, backend: str) -> Loaded:
    import cml_engine as cml

    graph = cml.load(workload.nnef)
    (target,) = graph.outputs
    gpu = cml.Gpu() if backend == "gpu" else None
    options = cml.CompileOptions()
    if backend == "onnxruntime":
        options = cml.CompileOptions(cpu="onnxruntime", cpu_threads=_threads())
    session = cml.Session(graph, gpu or "cpu", options)
    device = gpu.name if gpu else f"{_threads()} threads"
    return Loaded(lambda inputs: session.run(inputs)[target], device)


def _load_ncnn(workload: Workload, on_gpu: bool) -> Loaded:
    net, device = ncnn_net(workload, on_gpu)
    targets = net.output_names()
    return Loaded(lambda inputs: run_ncnn(net, inputs, targets)[0][None], device)


def ncnn_net(workload: Workload, on_gpu: bool) -> tuple[Any, str]:
    """Loads the workload's network with ncnn; returns it and the name of its device.

    Raises :class:`Unavailable` if there is no Vulkan device, or ncnn cannot read the network or
    falls back to the CPU.
    """
    import ncnn

    if not workload.param.exists():
        raise Unavailable("this network has no file of ncnn's")
    net = ncnn.Net()
    device = f"{_threads()} threads"
    if on_gpu:
        if ncnn.get_gpu_count() == 0:
            raise Unavailable("ncnn finds no Vulkan device")
        index = ncnn.get_default_gpu_index()
        net.set_vulkan_device(index)
        device = ncnn.get_gpu_info(index).device_name()
    _set_ncnn_options(net.opt, on_gpu)
    if net.load_param(str(workload.param)) or net.load_model(str(workload.weights)):
        raise Unavailable("ncnn cannot read the network")
    if net.opt.use_vulkan_compute != on_gpu:
        raise Unavailable("ncnn fell back to the CPU")
    return net, device


def run_ncnn(net: Any, inputs: Inputs, names: Sequence[str]) -> list[Array]:
    """Runs ncnn's network and returns the tensors called ``names``, without a batch axis.

    ncnn has no batch axis.
    """
    import ncnn

    extractor = net.create_extractor()
    for name, data in inputs.items():
        # a copy: layers that overwrite their input crash on memory owned by NumPy
        extractor.input(name, ncnn.Mat(data[0]).clone())
    results = []
    for name in names:
        failed, result = extractor.extract(name)
        if failed:
            raise Unavailable(f"ncnn failed with code {failed}")
        results.append(np.array(result))
    return results


def _set_ncnn_options(options: Any, on_gpu: bool) -> None:
    """Sets ncnn's device and threads, and 32-bit floats throughout.

    Other options keep their defaults.
    """
    options.use_vulkan_compute = on_gpu
    options.num_threads = _threads()
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(options, f"use_{name}", False)


def _load_onnxruntime(workload: Workload, provider: str) -> Loaded:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(workload.onnx), providers=[provider])
    if session.get_providers()[0] != provider:
        raise Unavailable(f"ONNX Runtime does not take {provider} here")

    on_cpu = provider.startswith("CPU")
    device = f"{_threads()} threads" if on_cpu else "the first WebGPU adapter"
    return Loaded(lambda inputs: session.run(None, inputs)[0], device)


def _load_tract(workload: Workload) -> Loaded:
    import tract

    model = tract.onnx().load(str(workload.onnx)).into_model()
    runnable = tract.runtime_for_name("default").prepare(model)

    return Loaded(lambda inputs: runnable.run(list(inputs.values()))[0].to_numpy(), "1 thread")


# fmt: off
#: in table order; the first three are this engine
CONTENDERS = (
    Contender("ours-gpu", "this engine, GPU", OURS, "wgpu", lambda w: _load_ours(w, "gpu")),
    Contender("ours-cpu", "this engine, CPU", OURS, "numpy", lambda w: _load_ours(w, "cpu")),
    Contender(
        "ours-ort", "this engine, ONNX Runtime", OURS, "onnxruntime",
        lambda w: _load_ours(w, "onnxruntime"),
    ),
    Contender("ncnn-vulkan", "ncnn, Vulkan", "ncnn", "ncnn", lambda w: _load_ncnn(w, True)),
    Contender("ncnn-cpu", "ncnn, CPU", "ncnn", "ncnn", lambda w: _load_ncnn(w, False)),
    Contender(
        "onnxruntime", "ONNX Runtime, CPU", "onnxruntime", "onnxruntime",
        lambda w: _load_onnxruntime(w, "CPUExecutionProvider"),
    ),
    Contender(
        "ort-webgpu", "ONNX Runtime, WebGPU", "onnxruntime-webgpu", "onnxruntime",
        lambda w: _load_onnxruntime(w, "WebGpuExecutionProvider"),
    ),
    Contender("tract", "tract, CPU", "tract", "tract", _load_tract),
)
# fmt: on


# -- a process of its own per engine


def start(contender: Contender, workload: Workload, inputs: Inputs) -> tuple[Run, dict[str, Any]]:
    """Loads the contender and runs it once; returns its run function and its description.

    The output of the run is saved. The description has the device, the version, and the ms of
    loading and the first run.
    """
    start_s = time.perf_counter()
    loaded = contender.load(workload)
    output = loaded.run(inputs)
    first = time.perf_counter() - start_s
    np.save(workload.output(contender.key), output)
    about = {
        "device": loaded.device,
        "version": version(contender.package),
        "first_ms": round(first * 1000, 1),
    }
    return loaded.run, about


def version(package: str) -> str:
    """Returns the version of an installed package; "" if it is used from its folder."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def measure(run: Run, inputs: Inputs, count: int) -> list[float]:
    """Returns the milliseconds of each of ``count`` runs.

    An earlier run, which wakes threads and warms caches, is not counted.
    """
    run(inputs)
    times = []
    for _ in range(count):
        start_s = time.perf_counter()
        run(inputs)
        times.append((time.perf_counter() - start_s) * 1000)
    return times


def serve(pipe: Connection, key: str, folder: Path) -> None:
    """Loads a contender and answers through the pipe; the target of its process.

    It sends the contender's description, or an error as text, then the milliseconds of N runs for
    every number N that it receives.
    """
    workload = Workload(folder)
    inputs = workload.load_inputs()
    contender = next(c for c in CONTENDERS if c.key == key)
    try:
        run, about = start(contender, workload, inputs)
    except Exception as error:  # any error becomes a row of the table
        pipe.send(str(error) if isinstance(error, Unavailable) else repr(error))
        return
    pipe.send(about)
    while True:
        pipe.send(measure(run, inputs, pipe.recv()))
