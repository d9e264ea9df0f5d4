"""Functions that return row mappings: which operand rows an operator needs for some result rows.

A mapping is a ``RowMapping`` and the functions are values of ``Traits.rows``
(``declaration/traits.py``), or help to compute them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.common.window import WindowAxis
from cml_engine.ops.declaration.spec import OperandRows, RowMapping, RowsOf, Span


def same_rows(attrs: Attrs, facts: Sequence[Fact], axis: int, kernel: str) -> RowMapping | None:
    """Returns the row mapping of an operator whose result row k needs row k of every operand.

    An operand of extent 1 along the axis, which is broadcast, is needed as a whole.
    """
    extent = max((f.shape[axis] for f in facts if f.rank > axis), default=1)
    has = [f.rank > axis and f.shape[axis] == extent > 1 for f in facts]

    def need(begin: int, end: int) -> OperandRows:
        return OperandRows(
            tuple((begin, end) if rows else None for rows in has), attrs, (begin, end)
        )

    return RowMapping(axis, need)


def exclude_axes(*named: str) -> RowsOf:
    """Returns a function like :func:`same_rows` that returns None for axes in the named attributes.

    An attribute's value may be an axis or a list of axes.
    """

    def rows(attrs: Attrs, facts: Sequence[Fact], axis: int, kernel: str) -> RowMapping | None:
        values = [attrs[name] for name in named]
        axes = [a for v in values for a in (v if isinstance(v, list | tuple) else [v])]
        return None if axis in axes else same_rows(attrs, facts, axis, kernel)

    return rows


def under_windows(axis: WindowAxis, border: str, begin: int, end: int) -> tuple[Span, Span]:
    """Returns the range of rows under the windows ``begin`` to ``end``, and the padding around it.

    With that padding (before, after), the rows produce exactly these windows. If the border repeats
    rows of the operand, those rows are included.
    """
    low = begin * axis.stride - axis.before
    high = (end - 1) * axis.stride - axis.before + axis.reach
    first, last = max(low, 0), min(high, axis.wide)
    if border not in ("constant", "ignore"):
        above, below = max(-low, 0), max(high - axis.wide, 0)
        if max(above, below) >= axis.wide:  # reflected more than once
            first, last = 0, axis.wide
        else:
            last = max(last, above + 1 if above else 0)
            first = min(first, axis.wide - below - 1 if below else first)
    first = min(first, axis.wide - 1)
    last = max(last, first + 1)
    return (first, last), (first - low, high - last)


def onto_windows(axis: WindowAxis, begin: int, end: int) -> tuple[Span, Span]:
    """Returns the operand's rows and the padding for results ``begin`` to ``end`` of a deconv.

    With that padding (before, after), the rows produce exactly these results.
    """
    first = max(-((axis.reach - 1 - begin - axis.before) // axis.stride), 0)
    last = min((end - 1 + axis.before) // axis.stride + 1, axis.narrow)
    first = min(first, axis.narrow - 1)
    last = max(last, first + 1)
    before = begin + axis.before - first * axis.stride
    full = (last - first - 1) * axis.stride + axis.reach
    return (first, last), (before, full - before - (end - begin))


def scale_rows(attrs: Attrs, axis: int, factor: int, result_axis: int | None = None) -> RowMapping:
    """Returns the row mapping of an operator that makes ``factor`` rows from each operand row.

    ``axis`` is the operand's axis; ``result_axis`` is the result's, if it differs.
    """

    def need(begin: int, end: int) -> OperandRows:
        first, last = begin // factor, -(-end // factor)
        return OperandRows(((first, last),), attrs, (first * factor, last * factor))

    return RowMapping(axis if result_axis is None else result_axis, need, factor)


def gather_rows(attrs: Attrs, axis: int, factor: int, result_axis: int | None = None) -> RowMapping:
    """Returns the row mapping of an operator that makes one row from ``factor`` operand rows.

    ``axis`` is the operand's axis; ``result_axis`` is the result's, if it differs.
    """

    def need(begin: int, end: int) -> OperandRows:
        return OperandRows(((begin * factor, end * factor),), attrs, (begin, end))

    return RowMapping(axis if result_axis is None else result_axis, need)
