"""Prints the table of ncnn's layers; with ``--write`` it renews docs/ncnn_layers.md.

``tests/ncnn/test_layers.py`` checks that the table has every layer of ncnn's own list, and
compares the numbers of those that convert.
"""

from __future__ import annotations

import sys

from cml_engine.formats.ncnn.conversion import EXPRESSION
from cml_engine.formats.ncnn.ncnn_model import LAYERS, REFUSED
from tests.fixtures.pages import ROOT

PAGE = ROOT / "docs" / "ncnn_layers.md"

_INTRODUCTION = """\
# ncnn layers

Written by `python -m tests.proofs.ncnn_layers --write`; do not edit.

Every layer type of ncnn's own list, and `pnnx.Expression`, which pnnx leaves where ncnn has no
layer. Each that converts is compared with ncnn's results, which differ where the last column says
so. Sizes and positions that are formulas,
such as `6="*(0w,2),-1"`, are computed when the model is loaded. Any other layer type, and each that
does not convert, can be [an operator of your own](your_model.md#ncnn).

These convert in every form: {plain}.

"""


def page() -> str:
    rows = {n: ("yes", layer.limits, layer.differences) for n, layer in LAYERS.items()}
    rows |= {name: ("no", reason, "") for name, reason in REFUSED.items()}
    plain = [name for name, cells in sorted(rows.items()) if cells == ("yes", "", "")]
    lines = [
        "| layer | converts | refused, or what to do | different from ncnn |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {' | '.join((name, *rows[name]))} |" for name in sorted(rows) if name not in plain
    ]
    return _INTRODUCTION.format(plain=", ".join(plain)) + "\n".join(lines) + "\n"


def ncnn_layers() -> list[str]:
    """Returns the names of ncnn's own layers that the table has."""
    return [name for name in (*LAYERS, *REFUSED) if name != EXPRESSION]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
