"""A bake whose workers are killed, started again, and whose client is interrupted.

``python -m tests.bake_chaos`` bakes a region of the demo's world twice: undisturbed, and on hosts
(a scheduler and workers, each a process of its own, started as on several machines) of which some
are killed at random moments and one is started again, and whose client gets a Ctrl-C halfway and is
started once more. The two stores must be equal, tile by tile. What was made again is counted, and
must have been in flight: begun by a worker and not written when that was killed, or when the client
was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fixtures.bake_log import begun, in_flight

ROOT = Path(__file__).resolve().parents[1]
LEVELS = "0:0"


def main() -> int:
    options = parser().parse_args()
    # in the background of a shell it is ignored, and would be by every client
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = run(Path(folder), options)
    print(json.dumps(found, indent=2))
    good = found["equal"] and found["complete"] and found["made_again_not_in_flight"] == 0
    print("good" if good else "BAD")
    return 0 if good else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bake_chaos")
    made.add_argument("--tiles", type=int, default=4096, help="a square number")
    made.add_argument("--hosts", type=int, default=3)
    made.add_argument("--kills", type=int, default=2)
    made.add_argument("--seed", type=int, default=0, help="of the moments")
    made.add_argument("--folder", help="where the stores are put for the time")
    return made


class Hosts:
    """A scheduler and workers, as on several machines; workers note each tile that they begin."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.log = folder, folder / "begun.log"
        self.address = f"tcp://127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", port,
                                     "--no-dashboard", "--no-show")  # fmt: skip
        self.workers = [self.start_worker() for _ in range(count)]

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny",
                           "--no-dashboard", "--local-directory", str(self.folder / "dask"),
                           "--preload", "tests.fixtures.bake_log")  # fmt: skip

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = (self.folder / "hosts.log").open("ab")
        env = {**os.environ, "CML_BAKE_LOG": str(self.log), "OPENBLAS_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "dask", *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet, env=env)

    def kill(self, number: int) -> list[str]:
        """What it was making."""
        worker = self.workers[number]
        worker.kill()
        worker.wait()
        return in_flight(self.log, worker.pid)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    side = round(options.tiles**0.5)
    chaos = random.Random(options.seed)
    hosts = Hosts(folder, options.hosts)
    try:
        start = time.perf_counter()
        disturbed = Bake(folder / "disturbed.zarr", side, hosts.address)
        moments = sorted(chaos.uniform(0.1, 0.9) for _ in range(options.kills))
        steps = [(moment, "kill") for moment in moments]
        steps += [(moments[0] + 0.05, "start"), (0.5, "interrupt")]
        alive, killed = list(range(options.hosts)), 0
        flying: list[str] = []
        for moment, step in sorted(steps):
            disturbed.wait_for(moment * side * side, hosts.log)
            if step == "kill":
                victim = alive.pop(chaos.randrange(len(alive)))
                flying += hosts.kill(victim)
                killed += 1
            elif step == "start":
                hosts.workers.append(hosts.start_worker())
            else:
                flying += disturbed.interrupt(hosts.log)
        disturbed.process.wait()
        report = disturbed.report()
        seconds = time.perf_counter() - start
        again = Counter(begun(hosts.log))
        again.subtract(set(again))
        hosts.log.unlink()
        calm = Bake(folder / "calm.zarr", side, hosts.address)
        calm.process.wait()
        return {
            "tiles": side * side,
            "killed": killed,
            "interrupts": disturbed.interrupts,
            "complete": disturbed.process.returncode == 0 and report["set_aside"] == 0,
            "in_flight": len(flying),
            "made_again": again.total(),
            "made_again_not_in_flight": (again - Counter(flying)).total(),
            "equal": digests(folder / "disturbed.zarr") == digests(folder / "calm.zarr"),
            "seconds": round(seconds, 1),
            "calm_seconds": calm.report()["seconds"],
            "last_start": {key: report[key] for key in ("made", "kept", "damaged", "retried")},
        }
    finally:
        hosts.close()


class Bake:
    """The command, in a process of its own."""

    def __init__(self, place: Path, side: int, address: str) -> None:
        self.place, self.interrupts = place, 0
        self._report = place.with_suffix(".json")
        self._words = ["--region", f"0:{side},0:{side}", "--levels", LEVELS, "--backend", "cpu",
                       "-o", str(place), "--scheduler", address,
                       "--report", str(self._report)]  # fmt: skip
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo_game.bake", *self._words], cwd=ROOT
        )

    def wait_for(self, tiles: float, log: Path) -> None:
        """Until so many were begun."""
        while len(begun(log)) < tiles and self.process.poll() is None:
            time.sleep(0.1)

    def interrupt(self, log: Path) -> list[str]:
        """Ctrl-C, and the same command again; what was being made between the two."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait() == 130
        self.interrupts += 1
        found = in_flight(log)
        self._start()
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found


def digests(place: Path) -> bytes:
    """Every tile's digest, and what each chunk says of its values, all looked at."""
    import zarr

    from cml_engine.distributed import Store
    from demo_game.bake.planet import Planet, layers_of
    from demo_game.chain import load_chain

    planet = Planet(place)
    layers = layers_of(planet.region, load_chain(), planet.block)
    store = Store(str(place), layers, writable=False)
    assert all(store.state(unit) == "whole" for layer in layers for unit in layer.units())
    group = zarr.open_group(place, mode="r")
    return b"".join(group[f"{layer.name}/{name}"][...].tobytes() for layer in layers
                    for name in ("digest", "sha256"))  # fmt: skip


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
