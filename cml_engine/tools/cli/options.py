"""Options that several commands of ``cml`` share."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from cml_engine.errors.arguments import ARENA_LIMIT_MIB, BUDGET_MS, FRAME_MS, SEED


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"cml: error: {message}; see '{self.prog} --help'\n")


#: options that several commands share: name or flags, and arguments of add_argument
_SHARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (
        ("model",),
        {"help": "NNEF folder, graph.nnef inside one, .tgz of one, .onnx, .param or cooked .cml"},
    ),
    "backend": (("--backend",), {"choices": ("auto", "gpu", "cpu"), "default": "auto"}),
    "inputs": (("-i", "--input"), {"action": "append", "default": [], "metavar": "NAME=FILE"}),
    "overwrite": (
        ("--overwrite",),
        {"action": "store_true", "help": "replace what is there; other files in a folder stay"},
    ),
    "json": (("--json",), {"action": "store_true"}),
    "half": (
        ("--half",),
        {
            "action": "store_true",
            "help": "keep feature maps and weights in 16 bits on the GPU (docs/faster.md)",
        },
    ),
    "budget": (("--budget-ms",), {"type": BUDGET_MS, "default": 4.0, "metavar": "MS"}),
    "frame": (("--frame-ms",), {"type": FRAME_MS, "default": 1000 / 60, "metavar": "MS"}),
    "ops": (
        ("--ops",),
        {
            "action": "append",
            "default": [],
            "metavar": "FILE.py",
            "help": "a Python file that registers operators; may be given again",
        },
    ),
    "fragments": (
        ("--fragments",),
        {
            "action": "append",
            "default": [],
            "metavar": "FILE.nnef",
            "help": "a library of NNEF fragments that the model calls; may be given again",
        },
    ),
    "shape": (
        ("--shape",),
        {
            "action": "append",
            "default": [],
            "metavar": "[NAME=]1,3,64,64",
            "help": "an input's shape instead of the model's; of several inputs say which",
        },
    ),
    "constant": (
        ("--constant",),
        {
            "action": "append",
            "default": [],
            "metavar": "NAME=VALUE|FILE",
            "help": "an input of an ONNX model that is the same in every run: a number, [1,2] or "
            "a .npy file; may be given again",
        },
    ),
    "limits": (
        ("--load-limits",),
        {
            "metavar": "memory=8G,nodes=N,steps=N",
            "help": "memory and work that one load may take (docs/your_model.md)",
        },
    ),
    "weights": (
        ("--weights",),
        {
            "metavar": "FILE.safetensors",
            "help": "the NNEF model's values by their labels, instead of tensor files",
        },
    ),
    "trusted": (
        ("--trusted",),
        {
            "action": "store_true",
            "help": "MODEL is a cooked file of your own: run its kernels without run-time checks "
            "(docs/ship_it.md)",
        },
    ),
    "random": (
        ("--random-weights",),
        {
            "type": SEED,
            "nargs": "?",
            "const": 0,
            "metavar": "SEED",
            "help": "make up the weights that are missing: what does it cost before it is trained?",
        },
    ),
    "arena": (
        ("--arena-limit-mib",),
        {
            "type": ARENA_LIMIT_MIB,
            "metavar": "MIB",
            "help": "what activations may take on the GPU: operators are computed in bands of rows "
            "where they would take more (docs/faster.md)",
        },
    ),
    "decide": (
        ("--decide",),
        {
            "metavar": "FILE.json",
            "help": "kernels, layouts, storage, parts, bands that you decide (docs/see_inside.md)",
        },
    ),
    "decisions": (
        ("--decisions",),
        {"metavar": "FILE.json", "help": "write what this device's plan decides, and why"},
    ),
    "dump": (
        ("--dump-kernels",),
        {"metavar": "DIR", "help": "write every kernel: its HLSL, SPIR-V and translations"},
    ),
}
#: the options that accompany the option on the left
_WITH: dict[str, tuple[str, ...]] = {
    "model": ("ops", "fragments", "shape", "weights", "constant", "limits", "trusted")
}


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Adds the shared options of these names to a command, and the options that accompany them."""
    for name in (*names, *(more for n in names for more in _WITH.get(n, ()))):
        flags, options = _SHARED[name]
        parser.add_argument(*flags, **options)
