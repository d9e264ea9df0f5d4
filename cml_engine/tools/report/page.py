"""Builds the HTML of the report page: tables, links and the document. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

#: the page may fetch nothing, even if a model's names contain links
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Html:
    """A text that is already HTML and is not escaped again."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a table: the text to show and the value to sort by."""

    value: float
    text: str


#: a cell of a table
Cell = str | Html | Number | int | None


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of the report page: its key, title and HTML, and the names of its data files."""

    key: str
    title: str
    body: Html
    files: tuple[str, ...] = ()


def number(value: float | None, digits: int = 3) -> Number | None:
    """Returns a table cell with ``value``, shown with ``digits`` decimals; None for None."""
    return None if value is None else Number(value, f"{value:.{digits}f}")


def html(*parts: str | Html) -> Html:
    """Returns the parts joined to one piece of HTML; plain text among them is escaped."""
    return Html("".join(p.text if isinstance(p, Html) else escape(p) for p in parts))


def note(text: str) -> Html:
    """Returns the text as an HTML paragraph of explanation."""
    return Html(f'<p class="note">{escape(text)}</p>')


def pre(text: str) -> Html:
    """Returns the text as preformatted HTML."""
    return Html(f"<pre>{escape(text)}</pre>")


def details(summary: str | Html, body: Html) -> Html:
    """Returns HTML with the summary, which expands to the body on a click."""
    return Html(f"<details><summary>{html(summary).text}</summary>{body.text}</details>")


def listed(items: Iterable[str | Html]) -> Html:
    """Returns the items as a bulleted HTML list."""
    return Html("<ul>" + "".join(f"<li>{html(item).text}</li>" for item in items) + "</ul>")


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Html:
    """Returns an HTML table that is sorted by a click on a column's title.

    A column is numeric if its first row has a number or its title ends in "%".
    """
    filled = [list(row) for row in rows]
    numeric = [
        any(isinstance(row[i], Number | int) for row in filled[:1]) or titles[i].endswith("%")
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


def page(title: str, intro: str, sections: Sequence[PageSection], missing: Sequence[str]) -> str:
    """Returns the whole HTML document as text.

    ``missing`` are the titles of sections that are not finished; the page names them.
    """
    links = "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections)
    unfinished = ""
    if missing:
        titles = escape(", ".join(missing))
        unfinished = f'<p class="missing">This report is not finished. Still to come: {titles}.</p>'
    body = "\n".join(map(_section, sections))
    css, js = (Path(__file__).with_suffix(s).read_text(encoding="utf-8") for s in (".css", ".js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(intro)}</p>\n{unfinished}\n<nav>{links}</nav>\n{body}\n"
        f"<script>\n{js}</script>\n</body>\n</html>\n"
    )


def link(file: str) -> Html:
    """Returns an HTML link to a file of the report folder."""
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
    if isinstance(cell, int):
        cell = Number(cell, str(cell))
    if isinstance(cell, Number):
        return f'<td class="n" data-value="{cell.value:.9g}">{escape(cell.text)}</td>'
    return f"<td>{html(cell).text}</td>"
