"""Facts about a network besides its speed: ``python -m benchmarks.facts FOLDER``.

Runs in a process of its own, so that no other network is loaded, as at the start of a game.
Times are those of a start with a warm shader cache and an open device.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cml_engine as cml
from benchmarks.contenders import Array, Workload
from benchmarks.table import one_line
from cml_engine.io.json_files import Json
from cml_engine.ops import load_families

#: the largest accepted ratio of the arena to its lower bound
ARENA_LIMIT = 1.05


@dataclass(frozen=True)
class Facts:
    """The operators, bytes of memory and start times of one network on this engine.

    ``bound_bytes`` is a lower bound of the arena's size. ``plan_ms`` is the time to parse and plan,
    ``ready_ms`` the time until the session can run. ``divergence`` is the first difference that
    ``cml validate`` found, or "" if all operators agree.
    """

    operators: int
    dispatches: int
    pipelines: int
    arena_bytes: int
    bound_bytes: int
    weights_bytes: int
    plan_ms: float
    ready_ms: float
    divergence: str

    @property
    def ratio(self) -> float:
        """The arena size over its lower bound."""
        return self.arena_bytes / self.bound_bytes if self.bound_bytes else 1.0


def collect(workload: Workload) -> Facts | str:
    """Returns the facts of a workload's network, or the reason why there are none.

    The network is started in two successive processes; the first only fills the shader cache.
    """
    for last in (False, True):
        command = [sys.executable, "-m", "benchmarks.facts", str(workload.folder)]
        done = subprocess.run(
            [*command, "--validate"] if last else command, capture_output=True, text=True
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return Facts(**json.loads(done.stdout.splitlines()[-1]))


def measure(path: Path, inputs: Mapping[str, Array], validate: bool) -> Facts:
    """Loads and plans the network and creates its session, and returns the counts, bytes and times.

    With ``validate`` it also compares every operator with NumPy.
    """
    from cml_engine.compiler.optimize import optimize
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.runtime.session import CompileOptions, make_plan

    load_families()
    gpu = Gpu()
    begun = time.perf_counter()
    graph = cml.load(path)
    loaded = time.perf_counter()
    plan = make_plan(optimize(graph), gpu, CompileOptions())
    planned = time.perf_counter()
    cml.Session(graph, gpu)
    # the session plans again, so the plan above is left out
    ready = time.perf_counter() - planned + loaded - begun
    return Facts(
        operators=len(graph.nodes),
        dispatches=len(plan.steps),
        pipelines=gpu.pipelines_built,
        arena_bytes=plan.memory.peak,
        bound_bytes=plan.memory.bound,
        weights_bytes=plan.weights_bytes,
        plan_ms=1e3 * (planned - begun),
        ready_ms=1e3 * ready,
        divergence=first_divergence(graph, gpu, inputs) if validate else "",
    )


def first_divergence(graph: Any, gpu: Any, inputs: Mapping[str, Array]) -> str:
    """Returns the text of the first difference that ``cml validate`` finds between GPU and NumPy.

    Returns "" if there is none.
    """
    from cml_engine.compiler.optimize import optimize
    from cml_engine.runtime.node_check import check_nodes
    from cml_engine.tools.report.validation import Validation

    return Validation.of(gpu.name, check_nodes(optimize(graph), gpu, inputs)).first


_HEAD = (
    "network", "operators", "dispatches", "pipelines", "arena, MB", "of its lower bound",
    "weights, MB", "parse and plan, ms", "until ready, ms", "validate",
)  # fmt: skip


def markdown(found: Mapping[str, Facts | str]) -> str:
    """Returns a Markdown table of the facts, one row per network.

    A network without facts shows the reason.
    """
    rows = [_row(model, facts) for model, facts in found.items()]
    lines = ["| " + " | ".join(cells) + " |" for cells in (_HEAD, *rows)]
    lines.insert(1, "|---|" + "--:|" * (len(_HEAD) - 2) + "---|")
    return "\n".join(lines)


def _row(model: str, facts: Facts | str) -> Sequence[str]:
    if isinstance(facts, str):
        return (model, one_line(facts), *[""] * (len(_HEAD) - 2))
    megabytes = [f"{n / 1e6:.2f}" for n in (facts.arena_bytes, facts.weights_bytes)]
    return (
        model,
        *map(str, (facts.operators, facts.dispatches, facts.pipelines)),
        megabytes[0],
        f"{facts.ratio:.3f}",
        megabytes[1],
        f"{facts.plan_ms:.0f}",
        f"{facts.ready_ms:.0f}",
        "all agree" if not facts.divergence else "DIVERGES",
    )


def verdicts(facts: Facts | str) -> list[tuple[bool, str]]:
    """Returns (passed, text) for the arena's size and for the validation.

    A reason instead of facts gives one failed verdict with that text.
    """
    if isinstance(facts, str):
        return [(False, facts)]
    ratio = f"arena ÷ lower bound = {facts.ratio:.3f}, at most {ARENA_LIMIT}"
    validated = facts.divergence or "all operators agree with NumPy"
    return [
        (facts.ratio <= ARENA_LIMIT, ratio),
        (not facts.divergence, f"validate: {validated}"),
    ]


def record(facts: Facts | str) -> dict[str, Json]:
    """Returns a network's facts, or the reason why there are none, for the JSON report."""
    if isinstance(facts, str):
        return {"problem": facts}
    return {**asdict(facts), "arena_ratio": round(facts.ratio, 4)}


def main(arguments: Sequence[str]) -> int:
    workload = Workload(Path(arguments[0]))
    try:
        facts = measure(workload.nnef, workload.load_inputs(), "--validate" in arguments)
    except cml.CmlError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
