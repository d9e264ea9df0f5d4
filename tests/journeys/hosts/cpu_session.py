"""Runs a model in NumPy, for which an installation needs neither a GPU nor the compiler."""

from pathlib import Path

import numpy as np

import cml_engine as cml

session = cml.Session(cml.load(Path(__file__).with_name("twice.nnef")), "cpu")
outputs = session.run({"image": np.ones((1, 3, 16, 16), np.float32)})
print(*((name, array.shape, array.mean()) for name, array in outputs.items()))
