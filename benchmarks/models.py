"""The measured networks, each as a function that fills a :class:`Workload`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

import cml_engine as cml
from benchmarks.contenders import Array, Workload
from benchmarks.ncnn_files import write_ncnn
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Graph
from cml_engine.tools.selftest import random_networks
from cml_engine.tools.selftest.random_networks import RandomNetwork
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters
from examples.upscale import assets, pictures

AGENTS = Path(__file__).resolve().parents[1] / "demo_game" / "models"
#: an opset that every engine reads and that has all operators used
_OPSET = 13
#: metres between neighbouring heights of the agents' input
_CELL = 32.0


def _upres(side: int, workload: Workload) -> None:
    """Writes the trained upscaling network for ``side`` x ``side`` pixels; its input is a photo."""
    shutil.copy(assets.NETWORK_PARAM.path, workload.param)
    shutil.copy(assets.NETWORK_BIN.path, workload.weights)
    photo = pictures.small_photo(assets.PHOTO.path, (side, side))
    workload.save_inputs({"data": as_tensor(photo)})
    _convert(workload, (1, 3, side, side))


def _random(network: Callable[[], RandomNetwork], workload: Workload) -> None:
    """Writes the network ``network()``, with noise as its input."""
    net = network()
    net.save(workload.param, workload.weights)
    noise = np.random.default_rng(0).standard_normal(net.shape, np.float32)
    workload.save_inputs({"data": noise})
    _convert(workload, net.shape)


def _stylegan2(workload: Workload) -> None:
    """Writes StyleGAN2's generator for 256x256 pictures with random weights, and its input.

    The input is a random latent vector.
    """
    config = Config(256)
    z = np.random.default_rng(0).standard_normal((1, config.latent), np.float32)
    _write_graph(build(config, random_parameters(config, 1)), {"z": z}, workload)


def _agent(name: str, workload: Workload) -> None:
    """Writes the demo's trained network ``name`` with generated inputs, and ncnn's files of it."""
    graph = cml.load(AGENTS / f"{name}.nnef")
    inputs = {name: _landscape(name, graph.facts[name].shape) for name in graph.inputs}
    _write_graph(graph, inputs, workload)
    write_ncnn(graph, workload.param, workload.weights)


def _write_graph(graph: Graph, inputs: Mapping[str, Array], workload: Workload) -> None:
    """Writes a graph of this engine to the workload as NNEF and ONNX, and its inputs."""
    cml.save(graph, workload.nnef)
    workload.save_inputs(inputs)
    cml.save(graph, workload.onnx, opset=_OPSET)


MODELS: dict[str, Callable[[Workload], None]] = {
    "upres64": partial(_upres, 64),
    "upres128": partial(_upres, 128),
    "mobilenet": partial(_random, random_networks.mobilenet),
    "unet": partial(_random, random_networks.unet),
    "rrdb": partial(_random, random_networks.rrdb),
    "stylegan2": _stylegan2,
    "vit": partial(_random, random_networks.vit),
    "gpt": partial(_random, random_networks.gpt),
    "agent-upres": partial(_agent, "upres"),
    "agent-texture": partial(_agent, "texture"),
    "agent-population": partial(_agent, "population"),
}


def load_network(model: str) -> tuple[Graph, dict[str, Array]]:
    """Returns the graph and the inputs of a network of :data:`MODELS`."""
    with tempfile.TemporaryDirectory(prefix="cml-model-") as folder:
        workload = Workload(Path(folder))
        MODELS[model](workload)
        return cml.load(workload.nnef), workload.load_inputs()


def ready_program(model: str, gpu: cml.Gpu) -> tuple[GpuProgram, dict[str, Array]]:
    """Returns a network of :data:`MODELS` as a GPU program that has run, and its inputs."""
    graph, inputs = load_network(model)
    session = cml.Session(graph, gpu)
    inputs = session.check_inputs(inputs)
    assert isinstance(session.program, GpuProgram)
    inspect.time_steps(session.program, inputs, 1)
    return session.program, inputs


def as_tensor(photo: Image.Image) -> Array:
    """Returns the photo as a tensor [1, 3, H, W] with values in [0, 1]."""
    pixels = np.asarray(photo, np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def _landscape(name: str, shape: tuple[int, ...]) -> Array:
    """Returns the array of an agent's input called ``name``.

    "cell" is the distance between points, "coarse" and "heights" are heights of hills in metres;
    any other input is noise in [0, 1).
    """
    noise: Array = np.random.default_rng(0).random(shape, np.float32)
    if name == "cell":
        return np.full(shape, _CELL, np.float32)
    if name not in ("coarse", "heights"):
        return noise
    rows, columns = (np.arange(extent, dtype=np.float32) for extent in shape[2:])
    hills = 200 * (np.sin(rows / 9)[:, None] + np.cos(columns / 7))
    return np.asarray(hills + 5 * noise, np.float32)


def _convert(workload: Workload, shape: tuple[int, ...]) -> None:
    """Converts the workload's ncnn files to NNEF and ONNX with the ``cml`` commands."""
    size = ",".join(map(str, shape))
    _cml("convert", str(workload.param), str(workload.nnef), "--shape", size)
    _cml("export", str(workload.nnef), str(workload.onnx), "--opset", str(_OPSET))


def _cml(*arguments: str) -> None:
    command = [sys.executable, "-m", "cml_engine", *arguments]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
