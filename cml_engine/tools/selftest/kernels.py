"""The part ``kernels``: every kernel of every operator against NumPy."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import load_families, lookup, registered
from cml_engine.testing import KernelCheck, kernel_checks
from cml_engine.tools.selftest.context import SelfTest

#: threads that build kernels, and the checks that they prepare before their turn
_THREADS = min(os.cpu_count() or 1, 8)
_AHEAD = 4 * _THREADS


def check_kernels(test: SelfTest) -> None:
    """Checks every kernel variant with the operators' declared cases, many of odd sizes.

    Results must agree with NumPy, be bit-identical for any partition of the workgroups, and leave
    the memory around them as it is.
    """
    load_families()
    checks = list(selected_checks(test.operators, test.gpu.limits, quick=test.quick))
    worst: dict[str, float] = {}
    for done, (one, prepared) in enumerate(_prepared(checks, test)):
        name = one.operator.name
        if name not in worst:
            test.begin(f"kernels: {name}")
            worst[name] = 0.0
        with test.check(partial(one.describe, test.gpu.limits)):
            worst[name] = max(worst[name], prepared.result()())
        test.show("checking kernels", done + 1, len(checks))
    test.part.facts["worst_error_by_operator"] = {n: round(w, 4) for n, w in worst.items()}
    test.part.note = (
        f"{len(worst)} operators, worst error {100 * max(worst.values(), default=0):.0f} % of the "
        "tolerance"
    )


def selected_checks(
    operators: Iterable[str], limits: Limits, *, quick: bool
) -> Iterator[KernelCheck]:
    """Yields checks of these operators' kernels, of all operators' if none is named.

    Each kernel runs every case in one layout or more, and every layout in one case or more. If
    ``quick`` is set, it runs its largest case, which has the most workgroups to slice.
    """
    for name in operators or registered():
        operator = lookup(name)
        if operator.kernel is None or not operator.cases:
            continue
        seen: set[object] = set()
        largest: dict[str, KernelCheck] = {}
        for one in kernel_checks(operator, limits):
            if quick:
                largest[one.option] = max(largest.get(one.option, one), one, key=_elements)
                continue
            layouts = tuple(one.layouts.get(n, "") for n in one.graph.facts)
            keys = {
                (one.option, one.case.id),
                (one.option, bool(one.graph.constants), one.keep, layouts),
            }
            if not keys <= seen:
                yield one
            seen |= keys
        yield from largest.values()


def _elements(one: KernelCheck) -> int:
    return sum(fact.size for fact in one.graph.facts.values())


def _prepared(
    checks: Iterable[KernelCheck], test: SelfTest
) -> Iterator[tuple[KernelCheck, Future[Callable[[], float]]]]:
    """Yields each check with its preparation, which other threads have begun some checks before."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[KernelCheck, Future[Callable[[], float]]]] = deque()
        for one in checks:
            waiting.append((one, pool.submit(one.prepare, test.gpu)))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting
