"""A bake whose workers are killed and restarted, and whose client is interrupted.

``python -m tests.bake_chaos`` bakes a region of the demo's world twice. The first bake is
undisturbed. The second runs on several hosts (a scheduler and workers, each a process of its own,
started as on several machines): some workers are killed at random moments, one is restarted, and
the client gets a Ctrl-C halfway and is started again. The two stores must be equal, tile by tile.
The program counts the tiles that were made twice; each must have been in flight when its worker was
killed or the client was interrupted: begun and not yet written. With ``--namespaces`` each host is
a network namespace with an address and a name of its own (Linux, as root).
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

from tests.fixtures.bake.log import begun, in_flight
from tests.fixtures.bake.namespaces import Alone, network

ROOT = Path(__file__).resolve().parents[1]
LEVELS = "0:0"


def main() -> int:
    options = parser().parse_args()
    # a shell's background job ignores SIGINT, and every client would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        network(options.hosts + 2, options.namespaces) as net,
    ):
        found = run(Path(folder), options, net)
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
    made.add_argument("--namespaces", action="store_true", help="each host in a network namespace")
    made.add_argument("--folder", help="where the stores are put for the time")
    return made


class Hosts:
    """A scheduler and workers as on several machines, each with its own folder and cache.

    Workers log each tile that they begin. The first host runs the scheduler and the client.
    """

    def __init__(self, folder: Path, count: int, net: Alone) -> None:
        self.folder, self.log, self.net = folder, folder / "begun.log", net
        port = str(free_port())
        self.address = f"tcp://{net.name(0)}:{port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start(0, "scheduler", "--host", net.name(0), "--port", port,
                                     "--no-dashboard", "--no-show")  # fmt: skip
        for _ in range(count):
            self.start_worker()

    def start_worker(self) -> None:
        """Starts a worker on one more host."""
        started = self._start(len(self.workers) + 1, "worker", self.address, "--nthreads", "1",
                              "--no-nanny", "--no-dashboard", "--local-directory", "dask",
                              "--preload", "tests.fixtures.bake.log")  # fmt: skip
        self.workers.append(started)

    def _start(self, host: int, *words: str) -> subprocess.Popen[bytes]:
        own = self.folder / f"host{host}"
        own.mkdir()
        env = {**os.environ, "CML_BAKE_LOG": str(self.log), "OPENBLAS_NUM_THREADS": "1",
               "CML_CACHE_DIR": str(own / "cache")}  # fmt: skip
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        command = [*self.net.inside(host), sys.executable, "-m", "dask", *words]
        with (own / "log").open("wb") as quiet:
            return subprocess.Popen(command, cwd=own, stdout=quiet, stderr=quiet, env=env)

    def kill(self, number: int) -> list[str]:
        """Kills a worker and returns the tiles that it had begun and not written."""
        worker = self.workers[number]
        worker.kill()
        worker.wait()
        return in_flight(self.log, worker.pid)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def run(folder: Path, options: argparse.Namespace, net: Alone) -> dict[str, Any]:
    side = round(options.tiles**0.5)
    chaos = random.Random(options.seed)
    hosts = Hosts(folder, options.hosts, net)
    try:
        start = time.perf_counter()
        disturbed = Bake(folder / "disturbed.zarr", side, hosts)
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
                hosts.start_worker()
            else:
                flying += disturbed.interrupt(hosts.log)
        disturbed.process.wait()
        report = disturbed.report()
        seconds = time.perf_counter() - start
        again = Counter(begun(hosts.log))
        again.subtract(set(again))
        hosts.log.unlink()
        calm = Bake(folder / "calm.zarr", side, hosts)
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
    """The bake command, in a process of its own."""

    def __init__(self, place: Path, side: int, hosts: Hosts) -> None:
        self.place, self.interrupts = place, 0
        self._report = place.with_suffix(".json")
        self._words = [*hosts.net.inside(0), sys.executable, "-m", "demo_game.bake",
                       "--region", f"0:{side},0:{side}", "--levels", LEVELS, "--backend", "cpu",
                       "-o", str(place), "--scheduler", hosts.address,
                       "--report", str(self._report)]  # fmt: skip
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._words, cwd=ROOT)

    def wait_for(self, tiles: float, log: Path) -> None:
        """Waits until ``tiles`` tiles have been begun or the command has ended."""
        while len(begun(log)) < tiles and self.process.poll() is None:
            time.sleep(0.1)

    def interrupt(self, log: Path) -> list[str]:
        """Sends Ctrl-C and starts the command again; returns the tiles that were in flight."""
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
    """Reads the whole store and returns every tile's digest and each chunk's checksum."""
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
