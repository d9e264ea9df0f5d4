"""The project's commands, for a machine that has only Python 3.11 or newer.

``python tasks.py help`` lists them. The first command creates a private environment in ``.venv``.
Each command installs its requirements at its first run; later runs start at once.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - checked before any import that an older Python lacks
    sys.exit(
        "This project needs Python 3.11 or newer; this is %d.%d (%s).\n"  # noqa: UP031
        "Install a newer one (your system's packages, or python.org) and run: "
        "python3.11 tasks.py demo" % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "cml-setup.json"
DEBIAN_DRIVER = ("libvulkan1", "mesa-vulkan-drivers")
#: optional extras: some have no wheel for some machines
OPTIONAL = frozenset(
    {"bake", "game", "images", "opengl", "oracles", "peers", "players", "plot", "pygfx"}
)
#: what hosts in C and C++ are built with, and a file of each
DEBIAN_BUILD = {
    "libvulkan-dev": "/usr/include/vulkan/vulkan.h",
    "vulkan-validationlayers": "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json",
    "libglfw3-dev": "/usr/include/GLFW/glfw3.h",
    "glslang-tools": "/usr/bin/glslangValidator",
}
#: prints the engine's adapter; exit code 3 means that there is none
PROBE = """
from cml_engine import DeviceError, Gpu
try:
    print(Gpu().name)
except DeviceError:
    raise SystemExit(3)
"""
NONE = "none"
#: more than four processes of tests take more memory than they save time
PARALLEL = ("-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal")
#: the tests that 'unlike' runs
UNLIKE = (
    "tests/scheduler", "tests/demo", "tests/panel", "tests/tuning",
    "tests/live/test_retaining_jobs.py", "tests/operators/test_reach.py",
    "--ignore=tests/demo/test_window.py",
)  # fmt: skip
#: folders of the tree that links in cml_engine/ make parts of it
LINKED = ("scheduler", "shaders_hlsl", "demo_game")
#: the region of 'bake': the coast where the demo's flight begins
BAKED = ("--region=-32:-20,-16:-8", "--levels=1:4", "--output=out/planet.zarr")


class TaskError(Exception):
    """A step that failed, with a message for the user."""


@dataclass(frozen=True)
class Stamp:
    """The results of earlier commands for the requirements that hash to ``key``.

    ``gpu`` is the adapter's name, "none", or "" if no command has looked for one yet.
    """

    key: str
    installed: tuple[str, ...] = ()
    gpu: str = ""


def say(text: str) -> None:
    print(f"[tasks] {text}", flush=True)


# ------------------------------------------------------------------ the environment


def prepare(*extras: str, gpu: bool = True) -> None:
    """Installs the project, the compiler and ``extras`` in ``.venv`` unless this was done.

    With ``gpu`` it also looks for an adapter, once, and tries to install a driver if there is none.
    """
    link_packages()
    stamp = read_stamp()
    missing = [e for e in ("", "compiler", *extras) if e not in stamp.installed]
    if missing:
        make_venv()
        install(missing)
        # pip does this for packages, but not for an editable one: a first start would take longer
        call([PYTHON, "-m", "compileall", "-q", "-j", "0", "cml_engine", *LINKED], quiet=True)
        stamp = replace(stamp, installed=(*stamp.installed, *missing))
        write_stamp(stamp)
    if gpu and not stamp.gpu:
        write_stamp(replace(stamp, gpu=find_gpu()))


def fingerprint() -> str:
    """Returns a hash of what requirements depend on: pyproject.toml, Python version, folder."""
    hasher = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    hasher.update(f"{sys.version_info[:2]} {ROOT}".encode())
    return hasher.hexdigest()


def read_stamp() -> Stamp:
    """Returns the stored stamp.

    It is an empty one if there is none, if the requirements have changed since, or if ``.venv``
    is gone.
    """
    empty = Stamp(fingerprint())
    try:
        fields = json.loads(STAMP.read_text(encoding="utf-8"))
        stamp = Stamp(fields["key"], tuple(fields["installed"]), fields["gpu"])
    except (OSError, ValueError, KeyError, TypeError):
        return empty
    return stamp if stamp.key == empty.key and PYTHON.exists() else empty


def write_stamp(stamp: Stamp) -> None:
    STAMP.write_text(json.dumps(asdict(stamp)), encoding="utf-8")


def make_venv() -> None:
    """Creates ``.venv`` anew unless it has a Python that starts and has pip.

    Raises :class:`TaskError` if this Python cannot create one.
    """
    if PYTHON.exists() and call([PYTHON, "-m", "pip", "--version"], quiet=True) == 0:
        return
    say(f"making {VENV}")
    if call([sys.executable, "-m", "venv", "--clear", VENV]) != 0:
        raise TaskError(
            "this Python cannot make a virtual environment.\n"
            "On Debian and Ubuntu: apt-get install python3-venv; then run this again."
        )


def link_packages() -> None:
    """Makes the links in ``cml_engine/`` where git wrote text files, its default on Windows."""
    for name in LINKED:
        link = ROOT / "cml_engine" / name
        if not link.is_file():
            continue
        link.unlink()
        if sys.platform == "win32":  # a junction needs no privilege
            import _winapi

            _winapi.CreateJunction(str(ROOT / name), str(link))
        else:
            link.symlink_to(Path("..") / name)


def install(extras: Sequence[str]) -> None:
    """Installs the project, editable, with ``extras`` ("" is the project itself), in one call.

    If that fails, it installs each optional extra on its own, and goes on without one that fails.
    """
    named = [extra for extra in extras if extra]
    if pip_install(named):
        return
    optional = [extra for extra in named if extra in OPTIONAL]
    if not optional or not pip_install([extra for extra in named if extra not in OPTIONAL]):
        raise TaskError(
            "pip could not install this project; its reason stands above.\n"
            "It needs a package index: check the network, or a proxy in HTTPS_PROXY, "
            "or a mirror in PIP_INDEX_URL; then run this again."
        )
    for extra in optional:
        if not pip_install([extra]):
            say(f"going on without '{extra}'; delete {STAMP} to try again")


def pip_install(extras: Sequence[str]) -> bool:
    """Installs the project with these extras; returns False if pip failed."""
    target = f".[{','.join(extras)}]" if extras else "."
    say(f"installing {target}")
    options = ["--quiet", "--disable-pip-version-check", "--editable", target]
    return call([PYTHON, "-m", "pip", "install", *options]) == 0


# ------------------------------------------------------------------ the GPU driver


def find_gpu() -> str:
    """Returns the name of the engine's adapter; "none", with a message, if there is none.

    Without an adapter it first tries to install a Vulkan driver.
    """
    name = probe_gpu()
    # Mesa's drivers, one of which runs in software
    linux = platform.system() == "Linux"
    if name == NONE and linux and install_debian("a Vulkan driver", DEBIAN_DRIVER):
        name = probe_gpu()
    if name == NONE:
        say(f"no GPU driver: going on with the CPU backend. {driver_advice()}")
    elif name:
        say(f"GPU: {name}")
    return name


def probe_gpu() -> str:
    """Starts the environment's Python to look for an adapter; returns its name, or "none".

    Returns "" with a message if the probe itself failed.
    """
    found = subprocess.run(
        [PYTHON, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return found.stdout.strip()
    if found.returncode == 3:
        return NONE
    said = found.stderr.strip().splitlines()
    say(f"cannot ask for the GPU: {said[-1] if said else f'exit code {found.returncode}'}")
    return ""


def install_debian(what: str, packages: Sequence[str]) -> bool:
    """Installs Debian packages; returns False without apt, without root, or if apt fails."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    say(f"installing {what}: apt-get install {' '.join(packages)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    call([apt, "-qq", "update"], quiet=True, env=env)
    options = ["-qq", "install", "-y", "--no-install-recommends"]
    return call([apt, *options, *packages], quiet=True, env=env) == 0


def driver_advice() -> str:
    if platform.system() == "Linux":
        return (
            f"Debian, Ubuntu: sudo apt-get install {' '.join(DEBIAN_DRIVER)}. "
            "Fedora: sudo dnf install vulkan-loader mesa-vulkan-drivers. "
            "Arch: sudo pacman -S vulkan-icd-loader vulkan-swrast (or your GPU's vulkan package)."
        )
    if platform.system() == "Windows":
        return "Windows: install the current driver of your graphics card (D3D12 or Vulkan)."
    return "macOS 11 or newer has Metal built in; on older systems there is no GPU backend."


# ------------------------------------------------------------------ commands


def setup(arguments: Sequence[str]) -> int:
    """make .venv and look for a GPU; further arguments are extras, such as game"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    if unknown := [extra for extra in arguments if extra not in extras]:
        raise TaskError(f"no extra is called '{unknown[0]}': choose among {', '.join(extras)}")
    if STAMP.exists():
        write_stamp(replace(read_stamp(), gpu=""))  # a driver may have been installed since
    prepare(*arguments)
    say(f"ready: {PYTHON.parent}")
    return 0


def demo(arguments: Sequence[str]) -> int:
    """fly through a world made by networks; without a display, a report and a picture in out/"""
    prepare("game")
    return python("-m", "demo_game", *arguments)


def pictures(arguments: Sequence[str]) -> int:
    """make docs/demo.jpg and docs/demo_overlay.png anew, from a flight on a quiet machine"""
    prepare("game")
    flight = ("-m", "demo_game", "--headless", "--quality", "software", "--start", "25.2")
    large = ("--size", "1280x720", "--screenshot-quality", "high", "--screenshot", "docs/demo.jpg")
    small = ("--size", "640x360", "--screenshot", "docs/demo_overlay.png")
    return python(*flight, *large, *arguments) or python(*flight, *small, *arguments)


def bake(arguments: Sequence[str]) -> int:
    """bake a part of the demo's world on all cores: out/planet.zarr, and its picture"""
    prepare("bake")
    (ROOT / "out").mkdir(exist_ok=True)
    return python("-m", "demo_game.bake", *(arguments or BAKED))


def cook(_arguments: Sequence[str] = ()) -> int:
    """cook the demo's networks, so that a wheel built afterwards contains them"""
    prepare()
    return python("-m", "demo_game.cooking")


def upscale(arguments: Sequence[str]) -> int:
    """enlarge a photo 4x with a real network; pictures in out/"""
    prepare()
    return python("-m", "examples.upscale", *arguments)


def test(arguments: Sequence[str]) -> int:
    """run the tests, on all cores; arguments go to pytest instead (-n 2 is two processes)"""
    prepare_tests()
    return python("-m", "pytest", *(arguments or PARALLEL))


def unlike(arguments: Sequence[str]) -> int:
    """run the tests of scheduler, demo and operators' reach as on a machine unlike this one"""
    prepare_tests()
    # llvmpipe with vectors of 128 bits, whose kernels its cache does not tell from others
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {
            "LP_NATIVE_VECTOR_WIDTH": "128",
            "MESA_SHADER_CACHE_DIR": cache,
            "CML_TEST_WRONG_GUESSES": "30",
        }
        return python("-m", "pytest", *PARALLEL, *(arguments or UNLIKE))


def prove(arguments: Sequence[str]) -> int:
    """the long proof: every operator, every ONNX case, random graphs, planted faults"""
    prepare_tests()
    return python("-m", "tests.proofs", *arguments)


def cold(arguments: Sequence[str]) -> int:
    """measure the demo's first picture and the tests with every cache empty"""
    prepare_tests()
    return python("-m", "tests.proofs", "--cold", *arguments)


def prepare_tests(*more: str) -> None:
    prepare(
        "test", "oracles", "players", "pygfx", "opengl", "game", "images", "bake", "plot", *more
    )
    if platform.system() == "Linux" and shutil.which("Xvfb") is None:
        install_debian("a display for tests", ("xvfb",))
    missing = [package for package, file in DEBIAN_BUILD.items() if not Path(file).exists()]
    if platform.system() == "Linux" and missing:
        install_debian("what tests build hosts of the C player with", missing)


#: checks that run no code of the project
STATIC = {
    "format": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
    "C format": ("players.format", "--check"),
}


def lint(_arguments: Sequence[str] = ()) -> int:
    """check format, lint and types"""
    prepare("dev", gpu=False)
    return check_all(STATIC)


def docs(_arguments: Sequence[str] = ()) -> int:
    """build the pages and the API reference in out/docs; a warning is an error"""
    prepare("docs", gpu=False)
    out = ROOT / "out" / "docs"
    code = python("-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(out))
    if code == 0:
        say(f"open {out / 'index.html'}")
    return code


def check(arguments: Sequence[str]) -> int:
    """check format, lint and types, and run the tests that need no GPU"""
    prepare("dev", "test", gpu=False)
    return check_all({**STATIC, "tests": ("pytest", "-m", "not gpu", *arguments)})


def check_all(steps: Mapping[str, Sequence[str]]) -> int:
    """Runs every step as ``python -m``, even after a failure; returns 1 if one failed, else 0."""
    failed = []
    for name, command in steps.items():
        say(f"check: {name}")
        if python("-m", *command) != 0:
            failed.append(name)
    say(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def release(arguments: Sequence[str]) -> int:
    """build the packages of a release in dist/; --dry-run also installs and tries each of them"""
    prepare_tests("release")
    # the demo in the wheel starts from cooked networks
    return python("-m", "demo_game.cooking") or python("release.py", *arguments)


def bench(arguments: Sequence[str]) -> int:
    """compare the speed with other engines in one table; --help for sizes and rounds"""
    prepare("peers")
    return python("-m", "benchmarks", *arguments)


def show_help(_arguments: Sequence[str] = ()) -> int:
    """this list"""
    print("usage: python tasks.py COMMAND [ARGUMENT ...]\n")
    for name, command in COMMANDS.items():
        print(f"  {name:8} {command.__doc__}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "setup": setup,
    "demo": demo,
    "pictures": pictures,
    "bake": bake,
    "cook": cook,
    "upscale": upscale,
    "test": test,
    "unlike": unlike,
    "check": check,
    "lint": lint,
    "docs": docs,
    "prove": prove,
    "cold": cold,
    "bench": bench,
    "release": release,
    "help": show_help,
}
#: the program that takes the arguments of a command; other commands take none, but setup extras
PROGRAMS = {
    "demo": "demo_game", "pictures": "demo_game", "bake": "demo_game.bake",
    "upscale": "examples.upscale", "test": "pytest", "unlike": "pytest", "check": "pytest",
    "prove": "tests.proofs", "cold": "tests.proofs", "bench": "benchmarks", "release": "release",
}  # fmt: skip


def show_options(name: str) -> int:
    """Prints what a command does, and the options of its program if that is installed.

    Installs nothing.
    """
    print(f"usage: python tasks.py {name} [ARGUMENT ...]\n\n  {COMMANDS[name].__doc__}")
    if program := PROGRAMS.get(name):
        help_command = list(map(str, [PYTHON, "-m", program, "--help"]))
        found = PYTHON.exists() and subprocess.run(
            help_command, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found and found.returncode == 0:
            print(f"\nIts arguments are those of python -m {program}:\n\n{found.stdout.rstrip()}")
        else:
            print(f"\nIts arguments are those of python -m {program}, which is not installed yet.")
    return 0


# ------------------------------------------------------------------ running


def call(
    command: Sequence[str | Path], quiet: bool = False, env: dict[str, str] | None = None
) -> int:
    """Runs a command in the project's folder.

    Returns its exit code, or 127 if it cannot be started. ``quiet`` drops all output but errors.
    """
    sink = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.call(list(map(str, command)), cwd=ROOT, stdout=sink, env=env)
    except OSError as error:
        say(f"cannot run {command[0]}: {error}")
        return 127


def python(*arguments: str) -> int:
    """Runs the environment's Python and returns its exit code."""
    return call([PYTHON, *arguments])


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        return show_help()
    name, *rest = arguments
    command = COMMANDS.get(name)
    if command is None:
        print(f"no command '{name}'; one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if "-h" in rest or "--help" in rest:
        return show_options(name)
    if rest and name not in (*PROGRAMS, "setup"):
        print(f"error: '{name}' takes no arguments: leave {' '.join(rest)} out", file=sys.stderr)
        return 2
    try:
        return command(rest)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
