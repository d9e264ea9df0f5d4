"""The game's command line: its options, and the runs in a window, headless, or on the CPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import cml_engine as cml
from cml_engine.demo_game import STARTED
from cml_engine.demo_game.exit_codes import exit_code_of
from cml_engine.demo_game.reporting.report import RunReport, player_table, table
from cml_engine.demo_game.surfaces import has_surfaces
from cml_engine.demo_game.world.sun import LIGHTS
from cml_engine.errors import FloatRange, IntegerRange
from cml_engine.io import write_atomically

if TYPE_CHECKING:  # what needs a GPU is imported when there is one
    from cml_engine.demo_game.cores import CoreWatch
    from cml_engine.demo_game.game import Settings
    from cml_engine.demo_game.render.quality import Quality

OUT = Path("out")
BUDGET = FloatRange(0.001, 60_000, "milliseconds")
#: the modes that ``--tour`` runs
TOUR = ("off", "sliced", "unsliced")
#: the frames of a flight, and of each flight of the tour
FRAMES, TOUR_FRAMES = 600, 300
FRAME_COUNT = IntegerRange(1, 1_000_000)
SECONDS = FloatRange(0, 1_000_000, "seconds")
KEYS = """keys in the window:
  W A S D               fly (ends the scripted flight)
  E, Q                  up, down
  Shift                 faster
  right mouse button    look around
  F1                    show or hide the overlay
"""


def main(argv: Sequence[str] | None = None, cores: CoreWatch | None = None) -> int:
    """Runs the command and returns the exit code; ``cores`` says which ones others keep busy."""
    options = parser().parse_args(argv)
    say("starting")  # the imports of a first start take seconds
    problem = "" if options.headless or options.compare else why_no_window()
    if problem:
        say(f"{problem}: a flight without a window, with and without networks, and a film of it")
        options.headless = options.tour = True
    options.frames = options.frames or (TOUR_FRAMES if options.tour else FRAMES)
    return exit_code_of(lambda: run(options, cores))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the game's command line."""
    command_line = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="The game in a window, or without one.",
        epilog=KEYS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command_line.add_argument
    add("--seed", type=IntegerRange(0, 2**31 - 1), help="which world (default 7)")
    add("--integer", action="store_true", help="the world that is the same on every "
        "machine, to the bit")  # fmt: skip
    add("--planet", type=Path, metavar="PLANET.zarr", help="a part of the world that "
        f"'python -m {__package__}.bake' has made")  # fmt: skip
    add("--models", type=Path, help="a folder with upres.nnef, texture.nnef or "
        "population.nnef to take instead of ours")  # fmt: skip
    add("--watch", action="store_true", help="look at the networks' files and at the "
        "game's kernels: what changes is taken while flying")  # fmt: skip
    add("--texture-upres", type=Path, metavar="MODEL", help="a network that makes "
        "colours four times as fine: [1, 3, 128, 128] in")  # fmt: skip
    add("--quality", choices=("auto", "software", "low", "high"), default="auto")
    add("--light", choices=tuple(LIGHTS), default="day", help="of what hour")
    add("--size", type=size, metavar="WxH", help="of the picture, in pixels")
    add("--budget-ms", type=BUDGET, help="for the networks in each frame "
        "(default: what the renderer leaves)")  # fmt: skip
    add("--by-hand", action="store_true", help="begin with the keys, not the path")
    add("--seconds", type=SECONDS, help="close the window after so many")
    add("--headless", action="store_true", help="no window: a scripted flight")
    add("--frames", type=FRAME_COUNT, help=f"headless: how many (default {FRAMES}; "
        f"{TOUR_FRAMES} in each flight where there is no display)")  # fmt: skip
    add("--start", type=SECONDS, default=0.0, metavar="SECONDS",
        help="headless: where on the path to begin")  # fmt: skip
    add("--clock", choices=("real", "virtual"), default="real", help="headless: "
        "pace the frames, or run them one after the other")  # fmt: skip
    add("--mode", choices=("sliced", "layer", "unsliced", "off"), default="sliced",
        help="networks within the budget, one operator per frame, whole networks "
        "in a frame, or none")  # fmt: skip
    add("--compare", action="store_true", help="headless: all four modes, one table")
    add("--film", type=film, metavar="FILE.gif", help="headless: write a short film "
        "of the flight")  # fmt: skip
    add("--overlay", action="store_true", help="headless: draw the overlay in every "
        "frame, and not only over the screenshot")  # fmt: skip
    add("--panels", type=panels, metavar="NAME,...", help="the overlay's panels that "
        "are open at start, as 'frames,operators'; 'none' shows none")  # fmt: skip
    command_line.set_defaults(tour=False)
    add("--report", type=Path, help="write the report as JSON")
    add(
        "--screenshot",
        type=Path,
        metavar="FILE",
        help="write the last frame, with the overlay, as a PNG or JPEG",
    )
    add("--screenshot-quality", choices=("software", "low", "high"), help="draw the "
        "screenshot at this quality, whatever the flight's is")  # fmt: skip

    return command_line


def size(text: str) -> tuple[int, int]:
    """Parses ``640x360`` into width and height; each must be 64 to 8192."""
    width, _, height = text.partition("x")
    try:
        sides = int(width), int(height)
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted WxH such as 640x360, got '{text}'") from None
    if not all(64 <= side <= 8192 for side in sides):
        raise argparse.ArgumentTypeError(f"wanted sides of 64 to 8192 pixels, got '{text}'")
    return sides


def panels(text: str) -> tuple[str, ...]:
    """Returns the panel titles in a text like ``frames,operators``; an empty tuple for "none"."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def film(text: str) -> Path:
    """Returns the path of a film; raises an argparse error if it does not end in ``.gif``."""
    if not text.lower().endswith(".gif"):
        raise argparse.ArgumentTypeError(f"wanted a name that ends in .gif, got '{text}'")
    return Path(text)


def why_no_window() -> str:
    """Returns the reason why no window can be opened, or an empty string if one may open."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not named and sys.platform not in ("win32", "darwin"):
        return "no display"
    return "" if has_surfaces() else "the Vulkan driver cannot draw to a window"


def run(options: argparse.Namespace, cores: CoreWatch | None = None) -> int:
    """Plays the game in a window, or flies without one; returns the exit code.

    Without a GPU it computes tiles on the CPU and draws a map.
    """
    options.seed = seed_of(options)
    windowed = not (options.headless or options.compare)
    need_extra(windowed, overlay=windowed or options.overlay or bool(options.panels))
    if options.panels:
        from cml_engine.demo_game.overlay.overlay import check_panels

        check_panels(options.panels)
    try:
        gpu = open_gpu(cores)
    except cml.DeviceError as error:
        if options.planet is not None:
            raise
        say(f"{error}\nWithout a GPU there is no picture: the networks make tiles on the CPU.")
        return run_on_cpu(options)
    from cml_engine.demo_game.presets import choose

    quality, settings, notice = choose(gpu, options)
    say(notice)
    if not windowed:
        return run_headless(gpu, quality, settings, options)
    from cml_engine.demo_game.window import GameWindow, open_canvas, run_window

    window = GameWindow(
        open_canvas(quality, settings),
        gpu,
        quality,
        settings,
        scripted=not options.by_hand,
        seconds=options.seconds,
        panels=options.panels,
    )
    window.game.controls.budget_ms = options.budget_ms
    window.game.on_fit = say
    if window.game.watch is not None:
        window.game.watch.on_change = say
    run_window(window)
    return 0


def open_gpu(cores: CoreWatch | None) -> cml.Gpu:
    """Returns the GPU; a software driver gets no core that other processes keep busy."""
    taken = 0 if cores is None else cores.count_taken()
    if cores is None or not taken:
        return cml.Gpu()
    cores.leave(taken)
    gpu = cml.Gpu()
    if gpu.limits.software:
        say(f"other programs keep {taken} of {len(cores.cores)} cores busy: the game leaves them")
    else:
        cores.leave(0)
    return gpu


def need_extra(window: bool, overlay: bool) -> None:
    """Raises :class:`cml.InputError` if a package of the extra ``game`` is missing."""
    feature, workaround = "the overlay is drawn", "leave '--overlay' out"
    if window:
        feature, workaround = "the window is drawn", "fly without it: --headless"
    for module, is_needed in (("glfw", window), ("imgui_bundle", overlay)):
        try:
            if is_needed:
                import_module(module)
        except ImportError as error:
            raise cml.InputError(
                f'{feature} with {module} ({error}): pip install "cml-engine[game]", '
                f"or {workaround}"
            ) from None


def seed_of(options: argparse.Namespace) -> int:
    """Returns the world's seed: that of ``--planet``, else ``--seed``, else the default.

    Raises :class:`cml.InputError` for options that contradict the planet.
    """
    if options.planet is None:
        from cml_engine.demo_game.presets import SEED

        return SEED if options.seed is None else int(options.seed)
    from cml_engine.demo_game.bake.planet import Planet
    from cml_engine.distributed import need_extra

    need_extra()
    if options.watch:
        raise cml.InputError("--planet has tiles that were made before: leave --watch out")
    if options.texture_upres is not None:
        raise cml.InputError("--planet has colours of its own: leave --texture-upres out")
    baked = Planet(options.planet).seed
    if options.seed not in (None, baked):
        raise cml.InputError(
            f"'{options.planet}' was baked with seed {baked}, --seed says {options.seed}: leave it "
            "out, or bake another planet"
        )
    return baked


def run_headless(
    gpu: cml.Gpu, quality: Quality, settings: Settings, options: argparse.Namespace
) -> int:
    """Flies without a window once for each requested mode; writes the report, screenshot and film.

    Returns 0, or 1 if ``--integer`` runs disagree about the world.
    """
    from cml_engine.demo_game.headless import MODES, Options
    from cml_engine.demo_game.headless import run as fly
    from cml_engine.demo_game.presets import make_settings

    report, screenshot = options.report, options.screenshot
    if report is None and screenshot is None:
        report, screenshot = OUT / "demo.json", OUT / "demo.png"
    film = options.film or (OUT / "demo.gif" if options.tour else None)
    still = None
    if options.screenshot_quality is not None:
        size = quality.width, quality.height
        still_options = {**vars(options), "quality": options.screenshot_quality, "size": size}
        still = make_settings(argparse.Namespace(**still_options))
    modes = MODES if options.compare else TOUR if options.tour else (options.mode,)
    runs: list[RunReport] = []
    for mode in modes:
        chosen = Options(
            options.frames, mode, options.clock, options.budget_ms, options.start,
            started=time.perf_counter() if runs else STARTED,
            overlay=options.overlay, panels=options.panels, still=still,
        )  # fmt: skip
        is_pictured = mode in ("sliced", options.mode)
        run = fly(
            gpu, quality, settings, chosen, progress=say_after,
            screenshot=screenshot if is_pictured else None, film=film if is_pictured else None,
        )  # fmt: skip
        runs.append(run)
        if len(modes) > 1:
            say(f"{mode}: {runs[-1].frames} frames")
    first = runs[0]
    say(
        f"first picture, a draft without networks, after {first.first_picture_s:.1f} s; the "
        f"networks' own ground after {first.ground_s:.1f} s; all loaded in {first.load_s:.1f} s"
    )
    if not options.tour:
        print(table(runs), end="\n\n")
    print(player_table(runs))
    write(report, runs)
    one = not settings.integer or tell_world(runs, quality, settings, options)
    if film is not None:
        say(f"film: {film}")
    if screenshot is not None:
        say(f"picture: {screenshot}")
    return 0 if one else 1


def tell_world(
    runs: Sequence[RunReport], quality: Quality, settings: Settings, options: argparse.Namespace
) -> bool:
    """Prints the hash of each run's integer world; returns True if all hashes are equal.

    With ``--compare`` it also computes the tiles of the last picture with NumPy and compares
    their hash.
    """
    from cml_engine.demo_game.reporting.digest import compare_worlds

    worlds = {run.mode: run.world for run in runs}
    if options.compare:
        worlds["CPU"] = cpu_world(quality, settings, options)
    text, equal = compare_worlds(worlds)
    print(text)
    return equal


def cpu_world(quality: Quality, settings: Settings, options: argparse.Namespace) -> str:
    """Computes the tiles of the flight's last picture with NumPy; returns their world's hash."""
    from cml_engine.demo_game.chain import load_chain
    from cml_engine.demo_game.flight import ScriptedFlight
    from cml_engine.demo_game.game import SPARE_SLOTS
    from cml_engine.demo_game.reporting.digest import tiles_of_picture, world_on_cpu

    seconds = options.start + options.frames * settings.frame_ms / 1e3
    pose, max_tiles = ScriptedFlight(settings.seed).pose(seconds), quality.slots - SPARE_SLOTS
    tiles = tiles_of_picture(pose, settings.seed, settings.detail, max_tiles)
    return world_on_cpu(load_chain(settings.models, integer=True), settings.seed, tiles, say_after)


def run_on_cpu(options: argparse.Namespace) -> int:
    """Computes a square of tiles with NumPy, writes their report and a map, and returns 0."""
    from cml_engine.demo_game.cpu_run import run as make

    report = options.report or OUT / "demo.json"
    screenshot = options.screenshot or OUT / "demo.png"
    summary = make(options.seed, options.models, screenshot, options.integer)
    print("{tiles} tiles in {seconds:.1f} s on the CPU, world {world}".format(**summary))
    for name, ms in summary["ms_per_tile"].items():
        print(f"  {name:12s} {ms:8.2f} ms per tile")
    if options.integer and options.compare:
        from cml_engine.demo_game.presets import make_settings

        print(f"world {cpu_world(*make_settings(options), options)} (CPU)")
    write_atomically(report, json.dumps(summary, indent=2))
    say(f"report: {report}, map: {screenshot}")
    return 0


def write(path: Path | None, runs: Sequence[RunReport]) -> None:
    """Writes the reports as JSON, one run as an object and several as a list.

    Does nothing without a path.
    """
    if path is None:
        return
    data = [run.to_json() for run in runs]
    write_atomically(path, json.dumps(data[0] if len(data) == 1 else data, indent=2))
    say(f"report: {path}")


def say_after(text: str) -> None:
    """Prints a line with the seconds since the program began, to stderr."""
    say(f"{time.perf_counter() - STARTED:4.1f} s: {text}")


def say(text: str) -> None:
    """Prints a line for the player to stderr, after ``[demo]``."""
    print(f"[demo] {text}", file=sys.stderr, flush=True)
