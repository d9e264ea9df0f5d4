"""``python -m demo_game.training``: train the agents, measure them, write them to ``models/``."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("training needs PyTorch: pip install cml-engine[training]") from None

from cml_engine.demo_game.chain import MODELS
from cml_engine.demo_game.training.export import build, import_weights, replace_model
from cml_engine.demo_game.training.networks import AGENTS
from cml_engine.demo_game.training.train import COURSES, Agent, Course, Maker, errors, maker, train
from cml_engine.io import write_atomically

#: squares of held-out worlds that errors are measured on
HELD_SQUARES = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument("--only", choices=list(AGENTS), help="train one agent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder to write to")
    args = parser.parse_args()
    if args.only not in (None, "upres") and not (args.models / "upres.nnef").is_dir():
        parser.error(
            f"{args.only} learns on land that the upres agent makes, and {args.models} has no "
            "upres.nnef: train that first (--only upres), or name another folder by --models"
        )
    return args


def train_agent(
    name: str, make: Maker, course: Course, seed: int, console: Console
) -> tuple[Agent, int]:
    """Trains the network of that name and prints its progress.

    Returns it and the number of squares used.
    """
    losses: list[float] = []
    for progress in train(name, make, course, seed):
        losses.append(progress.loss)
        if progress.steps % 200 == 0:
            status = f"{name} {progress.steps}/{course.steps}  loss {np.mean(losses):.5f}"
            console.print(f"{status}  {progress.squares} squares", highlight=False)
            losses.clear()
    return progress.agent, progress.squares


def train_and_export(name: str, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Trains, measures and writes one agent.

    Returns its entry in the recipe (parameters, errors, digest). The texture and population
    agents need a trained upres agent in ``args.models``.
    """
    upres = Agent("upres")
    if name != "upres":
        upres.load(import_weights(args.models / "upres.nnef", upres.weights))
    make = maker(name, upres)

    course = COURSES[name]
    start_s = time.perf_counter()
    agent, squares = train_agent(name, make, course, args.seed, console)
    seconds = time.perf_counter() - start_s
    rng = np.random.default_rng(1)
    agent_errors = errors(agent, [make(rng, True)(rng) for _ in range(HELD_SQUARES)])
    errors_text = "  ".join(f"{key} {value:.4f}" for key, value in agent_errors.items())
    console.print(f"{name}: {errors_text}", highlight=False)
    folder = args.models / f"{name}.nnef"
    graph = build(name, AGENTS[name], agent.arrays())
    replace_model(folder, graph)
    files = sorted(folder.iterdir())
    return {
        "seed": args.seed,
        **asdict(course),
        "squares": squares,
        "held_out_squares": HELD_SQUARES,
        "train_seconds": round(seconds),
        "torch": torch.__version__,
        "errors": {"agent": {key: round(value, 5) for key, value in agent_errors.items()}},
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(),
    }


def main() -> None:
    args = parse_arguments()
    console = Console()
    torch.set_num_threads(1)  # results do not depend on the number of cores
    path = args.models / "recipe.json"
    recipe = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in [args.only] if args.only else AGENTS:
        recipe[name] = train_and_export(name, args, console)
        write_atomically(path, json.dumps(recipe, indent=2) + "\n")


if __name__ == "__main__":
    main()
