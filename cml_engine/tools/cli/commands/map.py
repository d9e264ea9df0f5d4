"""Run a model over many inputs, on all cores or a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from cml_engine.distributed.cluster import WORKERS
from cml_engine.distributed.map import BATCH, map_network
from cml_engine.distributed.report import show_progress
from cml_engine.distributed.run import PRICE
from cml_engine.distributed.sources import first_shape
from cml_engine.errors import InputError
from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically
from cml_engine.tools.cli.common import compile_options, is_cooked, load_open
from cml_engine.tools.cli.options import CLUSTER, INPUTS, OUTPUT, CommandParser, add_options

GROUP = "Run and check"
EXAMPLE = "cml map enlarge.onnx --inputs 'tiles/*.npy' -o enlarged.zarr --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "backend", "adapter", "half")
    parser.group(INPUTS).add_argument(
        "--inputs",
        required=True,
        metavar="PATTERN",
        help="files such as 'tiles/*.npy' (.npy, .npz, .png), or a Zarr array with an input in "
        "each chunk",
    )
    output, workers = parser.group(OUTPUT), parser.group(CLUSTER)
    output.add_argument(
        "-o", "--output", required=True, metavar="STORE.zarr", help="the Zarr store to write"
    )
    output.add_argument("--report", metavar="FILE.json", help="write counts, times and the price")
    output.add_argument(
        "--trace", metavar="FILE.json", help="write when each worker ran what, for ui.perfetto.dev"
    )
    output.add_argument(
        "--no-verify",
        action="store_true",
        help="do not verify the checksums of results that the store has already",
    )
    workers.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask cluster to use: tcp://HOST:8786"
    )
    workers.add_argument(
        "--workers",
        type=WORKERS,
        metavar="N",
        help="processes on this machine (default: one for each core, on a GPU one)",
    )
    workers.add_argument(
        "--batch",
        type=BATCH,
        metavar="N",
        help="inputs computed at once (default: the fastest number)",
    )
    workers.add_argument(
        "--per-task",
        type=BATCH,
        metavar="N",
        help="inputs in a task, and in a chunk of the store",
    )
    workers.add_argument(
        "--price",
        type=PRICE,
        metavar="P",
        help="the price of a worker for an hour, for the report",
    )


def run(a: argparse.Namespace) -> int:
    if a.half and a.backend == "cpu":
        raise InputError("--half needs a GPU, as NumPy stores 32 bits: leave --backend cpu out")
    if a.report is not None:
        check_place(Path(a.report))
    graph = load_open(a, partial(first_shape, a.inputs))
    try:
        with show_progress("inputs") as progress:
            report = map_network(
                a.model if is_cooked(a.model) else graph,
                a.inputs,
                a.output,
                scheduler=a.scheduler,
                workers=a.workers,
                backend=a.backend,
                options=compile_options(a),
                batch=a.batch,
                per_task=a.per_task,
                verify=not a.no_verify,
                ops=a.ops,
                trusted=a.trusted,
                price=a.price,
                progress=progress,
                dashboard=True,
                trace=a.trace,
            )
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(f"cml: {interrupt}", file=sys.stderr)
        raise
    print(report)
    if a.report is not None:
        write_atomically(Path(a.report), json.dumps(report.to_json(), indent=2))
    report.check()
    return 0
