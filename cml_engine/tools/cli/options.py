"""The declarations of commands and of their options.

A command is a function under :func:`command`, which states its group, an example and its options:
its own, made by :func:`option` and :func:`flag`, and shared ones by name.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    ARENA_LIMIT_MIB,
    BUDGET_MS,
    FRAME_MS,
    SEED,
    TIMES,
    Preset,
)

#: a group of a command's options in its help
Group = Literal["model", "inputs", "GPU", "workers", "output", "general"]
GROUPS: tuple[Group, ...] = get_args(Group)
#: the metavar of an option whose value is a pattern of files
PATTERN = "PATTERN"


@dataclass(frozen=True)
class Option:
    """An option or a positional argument, with the arguments of ``add_argument``."""

    group: Group
    flags: tuple[str, ...]
    settings: Mapping[str, object]


def option(group: Group, *flags: str, **settings: object) -> Option:
    """Returns an option, or a positional argument, with these settings of ``add_argument``."""
    return Option(group, flags, settings)


def value_option(
    group: Group,
    name: str,
    metavar: str,
    help: str,
    type: Callable[[str], object] = str,
    default: object = None,
    *,
    short: str = "",
    repeatable: bool = False,
    required: bool = False,
) -> Option:
    """Returns an option with a value; a repeatable one collects its values in a list."""
    settings: dict[str, object] = {"metavar": metavar, "type": type}
    if repeatable:
        settings |= {"action": "append", "default": [], "help": f"{help}; repeatable"}
    else:
        settings |= {"default": default, "help": help, "required": required}
    return Option(group, (short, name) if short else (name,), settings)


def flag(group: Group, name: str, help: str) -> Option:
    """Returns an option without a value, which is True if it is given."""
    return option(group, name, action="store_true", help=help)


#: the commands by name
COMMANDS: dict[str, Command] = {}
Run = Callable[[Namespace], int | None]


@dataclass(frozen=True)
class Command:
    """A command: its group in ``cml --help``, a command line that runs, its options and function.

    The function returns the exit code; None is 0.
    """

    group: str
    example: str
    options: tuple[Option, ...]
    run: Run

    @property
    def help(self) -> str:
        """The help in one line: the function's docstring."""
        return self.run.__doc__ or ""


def command(group: str, example: str, *options: str | Option) -> Callable[[Run], Run]:
    """Declares a command; its name is the second word of the example.

    A text among the options is a name in :data:`_SETS` or :data:`_SHARED`.
    """

    def declare(run: Run) -> Run:
        declared: list[Option] = []
        for item in options:
            if isinstance(item, Option):
                declared.append(item)
            else:
                declared += (_SHARED[name] for name in _SETS.get(item, (item,)))
        COMMANDS[example.split()[1]] = Command(group, example, tuple(declared), run)
        return run

    return declare


def given(a: Namespace, *names: str) -> str:
    """Returns the options with these names that the command line has, as a text; "" for none.

    An option with the value of its default counts as not given.
    """
    options = COMMANDS[a.command_name].options
    defaults = {flag: option.settings.get("default") for option in options for flag in option.flags}
    values = {f"--{name}": getattr(a, name.replace("-", "_"), None) for name in names}
    # a number may be 0, which equals False
    return " and ".join(
        n
        for n, v in values.items()
        if v is not None and v is not False and v != [] and v != defaults.get(n)
    )


def refuse(a: Namespace, reason: str, *names: str) -> None:
    """Raises ``InputError`` with the reason if one of the options with these names is given."""
    if conflicts := given(a, *names):
        raise InputError(f"{reason}: leave {conflicts} out")


def require(a: Namespace, needed: str, *names: str) -> None:
    """Raises ``InputError`` if an option with these names is given, which needs the other one."""
    if dependents := given(a, *names):
        raise InputError(f"{dependents} needs {needed}: give that too")


_SHARED = {
    "file": option(
        "model",
        "model",
        metavar="MODEL",
        help="an .onnx file; an NNEF folder, its graph.nnef or a .tgz of it; an ncnn .param; a "
        "cooked .cml",
    ),
    "shape": value_option(
        "model",
        "--shape",
        "[NAME=]1,3,64,64",
        "the shape of an input, where the model leaves it open or another one is wanted",
        repeatable=True,
    ),
    "constant": value_option(
        "model",
        "--constant",
        "NAME=VALUE|FILE",
        "an input of an ONNX model that is the same in every run: a number, [1,2] or a .npy file",
        repeatable=True,
    ),
    "choice": value_option(
        "model",
        "--output",
        "NAME",
        "compute this output, or this inner tensor, and read nothing that it does not need "
        "(default: all outputs)",
        repeatable=True,
    ),
    "weights": value_option(
        "model",
        "--weights",
        "FILE.safetensors",
        "the values of an NNEF model's variables by label, instead of its tensor files",
    ),
    "random": option(
        "model",
        "--random-weights",
        type=SEED,
        nargs="?",
        const=0,
        metavar="SEED",
        help="make up missing weights: a network's cost does not depend on them",
    ),
    "ops": value_option(
        "model",
        "--ops",
        "FILE.py",
        "a Python file that registers operators (cml docs custom_operators)",
        repeatable=True,
    ),
    "fragments": value_option(
        "model",
        "--fragments",
        "FILE.nnef",
        "a library of NNEF fragments that the model calls",
        repeatable=True,
    ),
    "limits": value_option(
        "model",
        "--load-limits",
        "memory=8G,nodes=N,steps=N",
        "the most memory and work that a load may take (cml docs your_model)",
    ),
    "trusted": flag(
        "model",
        "--trusted",
        "MODEL is a cooked file of your own: run its kernels without run-time checks "
        "(cml docs ship_it)",
    ),
    "inputs": value_option(
        "inputs",
        "--input",
        "NAME=FILE",
        "the value of an input: a .npy, .npz, .png, .tif or .exr file",
        short="-i",
        repeatable=True,
    ),
    "backend": option(
        "GPU",
        "--backend",
        choices=("auto", "gpu", "cpu", "onnxruntime"),
        default="auto",
        help="where to run; auto (the default) is a GPU if there is one, cpu is NumPy",
    ),
    "adapter": value_option(
        "GPU",
        "--adapter",
        "NAME",
        "a part of the name of the GPU to use, as 'cml devices' lists them",
    ),
    "half": flag("GPU", "--half", "store feature maps and weights in 16 bits (cml docs faster)"),
    "arithmetic": flag(
        "GPU",
        "--half-arithmetic",
        "as --half, and let convolutions multiply in 16 bits where hardware has shader-f16",
    ),
    "winograd": flag(
        "GPU",
        "--no-winograd",
        "compute convolutions by their windows alone: for HDR pictures (cml docs faster)",
    ),
    "preset": option(
        "GPU",
        "--preset",
        choices=get_args(Preset),
        help="options by name: shipping (operators in the order of least memory), debug (each "
        "operator as written, with untuned kernels), smallest (shipping, in 16 bits); other "
        "options win",
    ),
    "arena": value_option(
        "GPU",
        "--arena-limit-mib",
        "MIB",
        "the most memory for activations; larger operators are computed in bands of rows "
        "(cml docs faster)",
        ARENA_LIMIT_MIB,
    ),
    "decide": value_option(
        "GPU",
        "--decide",
        "FILE.json",
        "your own choices of kernels, layouts, storage, parts and bands (cml docs see_inside)",
    ),
    "decisions": value_option(
        "GPU", "--decisions", "FILE.json", "write what the plan decides on this device, and why"
    ),
    "dump": value_option(
        "GPU", "--dump-kernels", "DIR", "write every kernel: its HLSL, SPIR-V and translations"
    ),
    "budget": value_option(
        "GPU",
        "--budget-ms",
        "MS",
        "milliseconds of every frame for the network (default: %(default)s)",
        BUDGET_MS,
        4.0,
    ),
    "frame": value_option(
        "GPU",
        "--frame-ms",
        "MS",
        "the duration of a frame in milliseconds (default: 16.67)",
        FRAME_MS,
        1000 / 60,
    ),
    "runs": value_option("GPU", "--runs", "N", "runs to measure (default: 10)", TIMES, 10),
    "overwrite": flag(
        "output", "--overwrite", "replace existing files; other files in a folder stay"
    ),
    "json": flag("output", "--json", "print JSON instead of a table"),
}
_SOURCE = ("file", "shape", "constant", "choice", "weights", "ops", "fragments", "limits")
_MODEL = (*_SOURCE, "trusted")
_PLAN = ("random", "adapter", "half", "arithmetic", "winograd", "preset", "decide")
#: sets of shared options: of a model that may be cooked, of one that may not, of a plan, of a model
#: and all of its plan, and of a run in frames
_SETS = {
    "model": _MODEL,
    "source": _SOURCE,
    "plan": _PLAN,
    "planned": (*_MODEL, *_PLAN, "arena", "decisions"),
    "frames": ("budget", "frame"),
}
