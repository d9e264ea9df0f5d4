"""The argument parser of commands, and the options that several commands share.

The help of a command lists its options in the groups of :data:`GROUPS`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from cml_engine.errors.arguments import ARENA_LIMIT_MIB, BUDGET_MS, FRAME_MS, SEED

#: the groups of a command's options, in the order of its help
MODEL, INPUTS, GPU, CLUSTER, OUTPUT, GENERAL = GROUPS = (
    "model", "inputs", "GPU", "workers", "output", "general",
)  # fmt: skip


class CommandParser(argparse.ArgumentParser):
    """An argument parser with titled groups of options, whose errors take one line.

    ``overview`` is the help of a command line with commands, instead of a list of arguments.
    """

    overview = ""

    def __init__(self, **settings: Any) -> None:
        shown = argparse.RawDescriptionHelpFormatter
        super().__init__(add_help=False, formatter_class=shown, **settings)
        self._titled = {title: self.add_argument_group(title) for title in GROUPS}
        self.group(GENERAL).add_argument("-h", "--help", action="help", help="show this help")

    def group(self, title: str) -> argparse._ArgumentGroup:
        """Returns the argument group with this title, one of :data:`GROUPS`."""
        return self._titled[title]

    def format_help(self) -> str:
        return self.overview or super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"cml: error: {message}; see '{self.prog} --help'\n")


@dataclass(frozen=True)
class SharedOption:
    """An option of several commands: its group, its flags, and arguments of ``add_argument``."""

    group: str
    flags: tuple[str, ...]
    settings: dict[str, Any]


def _option(group: str, *flags: str, **settings: Any) -> SharedOption:
    return SharedOption(group, flags, settings)


_SHARED = {
    "model": _option(
        MODEL,
        "model",
        metavar="MODEL",
        help="an .onnx file; an NNEF folder, its graph.nnef or a .tgz of it; an ncnn .param; a "
        "cooked .cml",
    ),
    "shape": _option(
        MODEL,
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=]1,3,64,64",
        help="the shape of an input, where the model leaves it open or another one is wanted; "
        "repeatable",
    ),
    "constant": _option(
        MODEL,
        "--constant",
        action="append",
        default=[],
        metavar="NAME=VALUE|FILE",
        help="an input of an ONNX model that is the same in every run: a number, [1,2] or a .npy "
        "file; repeatable",
    ),
    "weights": _option(
        MODEL,
        "--weights",
        metavar="FILE.safetensors",
        help="the values of an NNEF model's variables by label, instead of its tensor files",
    ),
    "random": _option(
        MODEL,
        "--random-weights",
        type=SEED,
        nargs="?",
        const=0,
        metavar="SEED",
        help="make up missing weights: a network's cost does not depend on them",
    ),
    "ops": _option(
        MODEL,
        "--ops",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file that registers operators (cml docs custom_operators); repeatable",
    ),
    "fragments": _option(
        MODEL,
        "--fragments",
        action="append",
        default=[],
        metavar="FILE.nnef",
        help="a library of NNEF fragments that the model calls; repeatable",
    ),
    "limits": _option(
        MODEL,
        "--load-limits",
        metavar="memory=8G,nodes=N,steps=N",
        help="the most memory and work that a load may take (cml docs your_model)",
    ),
    "trusted": _option(
        MODEL,
        "--trusted",
        action="store_true",
        help="MODEL is a cooked file of your own: run its kernels without run-time checks "
        "(cml docs ship_it)",
    ),
    "inputs": _option(
        INPUTS,
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="the value of an input: a .npy, .npz, .png, .tif or .exr file; repeatable",
    ),
    "backend": _option(
        GPU,
        "--backend",
        choices=("auto", "gpu", "cpu"),
        default="auto",
        help="where to run; auto (the default) is a GPU if there is one",
    ),
    "adapter": _option(
        GPU,
        "--adapter",
        metavar="NAME",
        help="a part of the name of the GPU to use, as 'cml devices' lists them",
    ),
    "half": _option(
        GPU,
        "--half",
        action="store_true",
        help="store feature maps and weights in 16 bits (cml docs faster)",
    ),
    "arena": _option(
        GPU,
        "--arena-limit-mib",
        type=ARENA_LIMIT_MIB,
        metavar="MIB",
        help="the most memory for activations; larger operators are computed in bands of rows "
        "(cml docs faster)",
    ),
    "decide": _option(
        GPU,
        "--decide",
        metavar="FILE.json",
        help="your own choices of kernels, layouts, storage, parts and bands (cml docs see_inside)",
    ),
    "decisions": _option(
        GPU,
        "--decisions",
        metavar="FILE.json",
        help="write what the plan decides on this device, and why",
    ),
    "dump": _option(
        GPU,
        "--dump-kernels",
        metavar="DIR",
        help="write every kernel: its HLSL, SPIR-V and translations",
    ),
    "budget": _option(
        GPU,
        "--budget-ms",
        type=BUDGET_MS,
        default=4.0,
        metavar="MS",
        help="milliseconds of every frame for the network (default: %(default)s)",
    ),
    "frame": _option(
        GPU,
        "--frame-ms",
        type=FRAME_MS,
        default=1000 / 60,
        metavar="MS",
        help="the duration of a frame in milliseconds (default: 16.67)",
    ),
    "overwrite": _option(
        OUTPUT,
        "--overwrite",
        action="store_true",
        help="replace existing files; other files in a folder stay",
    ),
    "json": _option(OUTPUT, "--json", action="store_true", help="print JSON instead of a table"),
}
_LOADED = ("shape", "constant", "weights", "ops", "fragments", "limits")
#: options that accompany the one on the left: those of a model that may be cooked, of one that may
#: not, of a plan, and of a run in frames
_WITH: dict[str, tuple[str, ...]] = {
    "model": (*_LOADED, "trusted"),
    "source": ("model", *_LOADED),
    "plan": ("random", "adapter", "half", "decide"),
    "frames": ("budget", "frame"),
}


def add_options(parser: CommandParser, *names: str) -> None:
    """Adds the shared options with these names, and their companions, to a parser."""
    for name in (more for n in names for more in (n, *_WITH.get(n, ()))):
        if name in _SHARED:
            option = _SHARED[name]
            parser.group(option.group).add_argument(*option.flags, **option.settings)
