"""The reach of a NaN: the results that it may disturb, by the operator's formula."""

from dataclasses import replace

import numpy as np

import cml_engine as cml
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.registry import is_registered
from tests.fixtures.texts import engine, outputs_of, write_text

#: finite values that show which results depend on an element: moderate ones, and large ones of both
#: signs, which extremes and clamps notice
_VALUES = (0.37, -1.83, 1e4, -1e4)


def planted(call, operand, at, value):
    """Returns the call with ``value`` at the flat index ``at`` of an operand."""
    arrays = [np.array(array) for array in call.arrays]
    arrays[operand].reshape(-1)[at] = value
    return replace(call, arrays=tuple(arrays))


def changed(before, after):
    """Returns a mask of the elements that differ; one NaN equals another."""
    return ~((before == after) | ((before != before) & (after != after)))


def reach(call, operand, at):
    """Returns two masks for each result of the call with a NaN at the flat index ``at``.

    The first has the elements that the NaN may change, by the formula: those that some value in its
    place changes. The second has those that must be NaN: those that a finite value changes too. So
    an element of a window whose weight is 0 may reach a result, and need not. Compositions of
    operators may lose a NaN in a maximum, which is a selection.
    """
    with np.errstate(all="ignore"):
        others = [planted(call, operand, at, value).answers for value in _VALUES]
        with_nan = planted(call, operand, at, np.nan).answers
    masks = []
    for i, (right, found) in enumerate(zip(call.answers, with_nan, strict=True)):
        finite = np.any([changed(right, other[i]) for other in others], axis=0)
        must = finite & (found != found) & is_registered(call.op)
        masks.append((finite | changed(right, found), must))
    return masks


def problems(call, operand, at, run):
    """Returns what is wrong with the reach of a NaN planted in an operand, one text per result.

    ``run`` computes a call and returns its results in order.
    """
    before, after = run(call), run(planted(call, operand, at, np.nan))
    wrong = []
    for i, (may, must) in enumerate(reach(call, operand, at)):
        beyond, missing = changed(before[i], after[i]) & ~may, must & (after[i] == after[i])
        if beyond.any() or missing.any():
            wrong.append(
                f"{call.op} {call.note!r} {dict(call.attrs)}, NaN at {at} of operand {operand}: "
                f"result {i} has {beyond.sum()} changed values out of its reach of {may.sum()}, "
                f"first at {np.argwhere(beyond)[:1].tolist()}; {missing.sum()} of {must.sum()} "
                "are not NaN"
            )
    return wrong


def check_reach(call, backend, folder, rng, tables=lambda session: [NO_VARIANTS]):
    """Asserts that a NaN in any operand reaches what the formula says, with computed and with
    constant operands.

    ``tables`` returns the tables of kernel variants to run, for the session of the defaults.
    """
    body = call.body(len(call.answers))
    for fixed in (False, True) if len(call.arrays) > 1 else (False,):
        names = frozenset(call.names[1:]) if fixed else frozenset()
        graph = cml.load(write_text(folder, body, call.inputs, head=call.head(), fixed=names))
        for table in tables(_session(graph, backend, NO_VARIANTS)):
            session = _session(graph, backend, table)

            def run(other, session=session, names=names):
                inputs = {n: engine(a) for n, a in other.inputs.items() if n not in names}
                found = session.run(inputs)
                return [found[name] for name in outputs_of(body)]

            for operand, array in enumerate(call.arrays[:1] if fixed else call.arrays):
                if array.dtype.kind == "f" and array.size:
                    for at in {array.size // 2, int(rng.integers(array.size))}:
                        wrong = problems(call, operand, at, run)
                        assert not wrong, f"{fixed=} {table}: {wrong}"


def _session(graph, backend, table):
    options = cml.CompileOptions(cpu="refuse", plan=PlanOptions(variants=table))
    return cml.Session(graph, backend, options)
