"""The decisions of a plan as a table."""

from __future__ import annotations

from collections.abc import Sequence

from cml_engine.planning.decisions import Decision
from cml_engine.report.folder.page import Cell, Html, details, listed, table

#: more options than these are shown at a click
_LISTED = 2


def decisions_table(decisions: Sequence[Decision]) -> Html:
    """A row for each."""
    rows = ((d.subject, d.kind, d.chosen, d.by, d.why, _others(d)) for d in decisions)
    return table(("subject", "kind", "chosen", "by", "why", "instead of"), rows)


def _others(decision: Decision) -> Cell:
    others = [option for option in decision.options if option != decision.chosen]
    if len(others) <= _LISTED:
        return ", ".join(others)
    return details(f"{len(others)} others", listed(others))
