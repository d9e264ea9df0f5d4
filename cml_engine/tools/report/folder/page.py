"""Pieces of the page: tables, links, and the whole of it. Everything that is shown is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import quote

#: nothing may be fetched, whatever a model's names say
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a table: how it is shown, and by what it is sorted."""

    value: float
    shown: str


#: what a table's cell may be
Cell = str | Html | Number | None


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page, and the files that have the same and more."""

    key: str
    title: str
    body: Html
    files: tuple[str, ...] = ()


def number(value: float | None, digits: int = 3, unit: float = 1.0) -> Number | None:
    """``value / unit`` with so many digits behind the point; None stays an empty cell."""
    return None if value is None else Number(value, f"{value / unit:.{digits}f}")


def whole(value: int) -> Number:
    """A whole number."""
    return Number(value, f"{value}")


def html(*parts: str | Html) -> Html:
    """The parts one after the other; text among them is escaped."""
    return Html("".join(p.text if isinstance(p, Html) else escape(p) for p in parts))


def note(text: str) -> Html:
    """A line beside the data."""
    return Html(f'<p class="note">{escape(text)}</p>')


def pre(text: str) -> Html:
    """Lines as they are."""
    return Html(f"<pre>{escape(text)}</pre>")


def details(summary: str | Html, body: Html) -> Html:
    """What opens at a click."""
    return Html(f"<details><summary>{html(summary).text}</summary>{body.text}</details>")


def listed(items: Iterable[str | Html]) -> Html:
    """A list with bullets."""
    return Html("<ul>" + "".join(f"<li>{html(item).text}</li>" for item in items) + "</ul>")


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Html:
    """A table that is sorted by a click. Columns of numbers are those whose first row has one."""
    filled = [list(row) for row in rows]
    numeric = [
        any(isinstance(row[i], Number) for row in filled[:1]) or titles[i].endswith("%")
        for i in range(len(titles))
    ]
    head = "".join(
        f"<th{' class=n' if n else ''}>{escape(title)}</th>"
        for title, n in zip(titles, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in filled)
    return Html(
        f'<div class="wide"><table class="sorted"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def page(title: str, lead: str, sections: Sequence[PageSection], missing: Sequence[str]) -> str:
    """The whole document; ``missing`` are the titles of sections that are not made yet."""
    links = "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections)
    open_ = ""
    if missing:
        rest = escape(", ".join(missing))
        open_ = f'<p class="missing">This report is not finished. Still to come: {rest}.</p>'
    body = "\n".join(map(_section, sections))
    css, js = _beside("page.css"), _beside("page.js")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(lead)}</p>\n{open_}\n<nav>{links}</nav>\n{body}\n"
        f"<script>\n{js}</script>\n</body>\n</html>\n"
    )


def link(file: str) -> Html:
    """A file of the folder."""
    return Html(f'<a href="{quote(file)}">{escape(file)}</a>')


def _section(section: PageSection) -> str:
    files = ""
    if section.files:
        files = f'<p class="files">{" · ".join(link(file).text for file in section.files)}</p>'
    return (
        f'<section id="{section.key}">\n<h2>{escape(section.title)}</h2>\n{files}\n'
        f"{section.body.text}\n</section>"
    )


def _cell(cell: Cell) -> str:
    if cell is None:
        return "<td></td>"
    if isinstance(cell, Number):
        return f'<td class="n" data-value="{cell.value:.9g}">{escape(cell.shown)}</td>'
    return f"<td>{html(cell).text}</td>"


@cache
def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
