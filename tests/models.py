"""Small models that tests write to disk and load, as a user would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.nnef.files.tensor_file import write_tensor

Array = np.ndarray[Any, Any]

#: the network of the CML blog, with its left-aligned broadcasting and without a version line
MODEL_ABC = """\
graph model_abc(input1, input2) -> (output1, output2)
{
input1 = external<scalar>(shape = [1, 128, 4, 4]);
input2 = external<scalar>(shape = [1, 128, 4]);
weight1 = variable<scalar>(shape = [128, 128, 3, 3], label = 'weight1');
bias1 = variable<scalar>(shape = [1, 128], label = 'bias1');
conv1 = conv(input1, weight1, bias1, stride = [1, 1], dilation = [1, 1],
             padding = [(1, 1), (1, 1)]);
min_reduce1 = min_reduce(input2, axes = [2]);
mean_reduce1 = mean_reduce(conv1, axes = [2, 3]);
output1 = sub(mean_reduce1, min_reduce1);
output2 = max(mean_reduce1, min_reduce1);
}
"""


def write_model(folder: Path, text: str, **tensors: Array) -> Path:
    """An NNEF folder with that text and those ``.dat`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.nnef").write_text(text, encoding="utf-8")
    for label, array in tensors.items():
        write_tensor(folder / f"{label}.dat", array)
    return folder


def write_model_abc(folder: Path, seed: int = 0) -> Path:
    """``model_abc`` with random weights."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((128, 128, 3, 3)).astype(np.float32) / 34
    bias = rng.standard_normal((1, 128)).astype(np.float32)
    return write_model(folder, MODEL_ABC, weight1=weight, bias1=bias)


def inputs_abc(seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "input1": rng.standard_normal((1, 128, 4, 4)).astype(np.float32),
        "input2": rng.standard_normal((1, 128, 4)).astype(np.float32),
    }
