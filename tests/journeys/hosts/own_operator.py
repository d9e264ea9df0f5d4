"""A game's own operator: built into a graph, checked, and reloaded while a slider moves."""

from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine import Reloader
from cml_engine.ops import load_file
from cml_engine.testing import check

OPERATOR = """
import numpy as np
import cml_engine as cml

cml.register(cml.OpSpec(
    "vig",
    signature="fragment vig(im: tensor<scalar>, k: scalar = 2.0) -> (y: tensor<scalar>);",
    infer=cml.ops.same_as(0),
    cpu=lambda attrs, im: np.float32(attrs.k) * np.sin(im),
    kernel=cml.Kernel("vig.hlsl"),
    cases=[cml.ops.Case(((1, 3, 8, 8),))],
))
"""
KERNEL = "void kernel(uint i) { y[i] = k * sin(im[i]); }\n"
Path("vig.py").write_text(OPERATOR)
kernel = Path("vig.hlsl")
kernel.write_text(KERNEL)
load_file("vig.py")
print(check("vig").worst < 1)

builder = cml.GraphBuilder("net")
image = builder.input("im", [1, 3, 8, 8])
plain = builder.graph(out=builder.relu(image))
builder = cml.edit(plain)
cml.save(builder.graph(out=builder.vig(builder["out"])), "net.nnef")

session = cml.Session(cml.load("net.nnef", sliders={"strength": "out.k"}), cml.Gpu())
reloader = Reloader(session, "net.nnef", ops=["vig.py"], every_s=0.0)


def value(strength: float) -> float:
    image = np.full((1, 3, 8, 8), np.pi / 2, np.float32)
    return round(float(session.run({"im": image, "strength": strength})["out"][0, 0, 0, 0]), 3)


def poll_until(words: str) -> None:
    while words not in reloader.said:
        reloader.poll()


print(value(3.0))
kernel.write_text(KERNEL.replace("im[i]", "in[i]") + "// broken\n")
poll_until("failed")
print(value(5.0))
kernel.write_text(KERNEL.replace("k *", "2 * k *"))
poll_until("done")
print(value(7.0))
