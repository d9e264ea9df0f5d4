"""``cml map``: a model over many inputs."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors.arguments import BATCH, PRICE, WORKERS
from cml_engine.io import arrays as array_files
from cml_engine.io.atomic_write import write_atomically
from cml_engine.tools.cli.commands.run import GROUP
from cml_engine.tools.cli.common import (
    compile_options,
    is_cooked,
    is_on_host,
    load_open,
)
from cml_engine.tools.cli.options import PATTERN, command, flag, option, value_option
from cml_engine.tools.cli.terminal import narrator, print_error

if TYPE_CHECKING:
    from cml_engine.distributed.report import Report


@command(
    GROUP,
    'cml map enlarge.onnx --inputs "tiles/*.npy" -o enlarged.zarr --shape 1,3,64,64',
    "model",
    "backend",
    "adapter",
    "half",
    "arithmetic",
    "winograd",
    option(
        "inputs",
        "--inputs",
        required=True,
        metavar=PATTERN,
        help='files such as "tiles/*.npy", in quotes (.npy, .npz, .png), or a Zarr array with an '
        "input in each chunk",
    ),
    value_option(
        "output", "--write", "STORE.zarr", "the Zarr store to write", short="-o", required=True
    ),
    value_option("output", "--report", "FILE.json", "write counts, times and the price"),
    value_option(
        "output", "--trace", "FILE.json", "write when each worker ran what, for ui.perfetto.dev"
    ),
    flag(
        "output",
        "--no-verify",
        "do not verify the checksums of results that the store has already",
    ),
    value_option("workers", "--scheduler", "ADDRESS", "a Dask cluster to use: tcp://HOST:8786"),
    value_option(
        "workers",
        "--workers",
        "N",
        "processes on this machine (default: one for each core, on a GPU one)",
        WORKERS,
    ),
    value_option(
        "workers", "--batch", "N", "inputs computed at once (default: the fastest number)", BATCH
    ),
    value_option(
        "workers", "--per-task", "N", "inputs in a task, and in a chunk of the store", BATCH
    ),
    value_option(
        "workers", "--price", "P", "the price of a worker for an hour, for the report", PRICE
    ),
)
def map_inputs(a: Namespace) -> int:
    """Run a model over many inputs, on all cores or a cluster."""
    from cml_engine.distributed.map import map_network
    from cml_engine.distributed.report import show_progress
    from cml_engine.distributed.sources import first_shape

    on_host = is_on_host(a)
    if a.report is not None:
        array_files.check_place(Path(a.report))
    graph = load_open(a, partial(first_shape, a.inputs))
    try:
        with narrator.stage("preparing the store and the workers"), show_progress("inputs") as show:

            def shown(report: Report) -> None:
                narrator.advance("")
                show(report)

            report = map_network(
                a.model if is_cooked(a.model) else graph,
                a.inputs,
                a.write,
                scheduler=a.scheduler,
                workers=a.workers,
                backend="cpu" if on_host else a.backend,
                options=compile_options(a),
                batch=a.batch,
                per_task=a.per_task,
                verify=not a.no_verify,
                ops=a.ops,
                trusted=a.trusted,
                price=a.price,
                progress=shown,
                dashboard=True,
                trace=a.trace,
            )
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print_error(str(interrupt))
        raise
    print(report)
    if a.report is not None:
        write_atomically(Path(a.report), json.dumps(report.to_json(), indent=2))
    report.check()
    return 0
