"""List the GPUs of this machine: limits, and names for --adapter."""

from __future__ import annotations

import argparse
import json

from cml_engine.errors import DeviceError
from cml_engine.io.json_files import Json
from cml_engine.tools.cli.options import CommandParser, add_options

GROUP = "This installation"
EXAMPLE = "cml devices"


def options(parser: CommandParser) -> None:
    add_options(parser, "json")


def run(a: argparse.Namespace) -> int:
    rows = _rows()
    if a.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(f"{'* ' if row['chosen'] else '  '}{row['name']}")
        print(
            f"    {row['kind']}; buffers up to {row['buffer_mib']} MiB, of a kernel "
            f"{row['binding_mib']} MiB; timestamps {'yes' if row['timestamps'] else 'no'}, "
            f"subgroups {'yes' if row['subgroups'] else 'no'}"
        )
    print("* is the default; --adapter NAME takes another" if rows else "no GPU")
    return 0


def _rows() -> list[dict[str, Json]]:
    try:
        from cml_engine.gpu.device import device_rows
    except ImportError as error:
        raise DeviceError(f"wgpu is not installed ({error}); pip install wgpu") from None
    return device_rows()
