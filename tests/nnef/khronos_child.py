"""Runs models with the Khronos interpreter, in a process of its own because some models crash it.

The argument lists the operators that the interpreter lowers. Standard input has a model's folder
per line; a line ``done N`` or ``error …`` answers each. The N results are written beside the model
as ``result_<i>.npy``.
"""

import sys
from pathlib import Path

import nnef
import numpy as np


def main() -> None:
    lowered = sys.argv[1].split(",")
    for line in sys.stdin:
        folder = Path(line.strip())
        inputs = [np.load(file) for file in sorted(folder.glob("input_*.npy"))]
        try:
            with nnef.Session(str(folder), stdlib="", lowered=lowered) as session:
                results = session(*inputs)
        except Exception as error:
            sys.stdout.write(f"error {type(error).__name__}: {str(error).splitlines()[0]}\n")
        else:
            for i, result in enumerate(results):
                np.save(folder / f"result_{i}.npy", result)
            sys.stdout.write(f"done {len(results)}\n")
        sys.stdout.flush()


main()
