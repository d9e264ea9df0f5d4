"""A sortable table of operators by cost, with details of the selected one."""

from __future__ import annotations

from dataclasses import dataclass

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import words
from cml_engine.tools.panel.operators import Key
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.ranking import Best, RankRow, RecentSums, ordered, rows
from cml_engine.tools.panel.view import Room, ShownView


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    #: the column to sort by, as numbered in ``ranking.ordered``
    number: int
    width: float
    compact: bool
    hint: str


#: widths in characters
_COLUMNS = (
    _Column("operator", 0, 0.0, True, "network and operator"),
    _Column("%", 1, 4.5, True, "of all GPU time for networks; the bar is against the first"),
    _Column("ms", 2, 5.0, True, "GPU time in all"),
    _Column("runs", 3, 4.5, False, "whole executions"),
    _Column("avg ms", 4, 5.5, True, "GPU time of a whole execution"),
    _Column("pred.", 5, 5.0, False, "predicted against measured: +50 % was thought to take longer"),
    _Column("GFLOP/s", 6, 7.5, False, "arithmetic; the bar is against the best seen"),
    _Column("GB/s", 7, 5.0, False, "memory read and written; the bar is against the best seen"),
)
_TABLE = (
    imgui.TableFlags_.sortable
    | imgui.TableFlags_.row_bg
    | imgui.TableFlags_.scroll_y
    | imgui.TableFlags_.no_saved_settings
    | imgui.TableFlags_.sizing_fixed_fit
    | imgui.TableFlags_.pad_outer_x
).value
_SELECTABLE = imgui.SelectableFlags_.span_all_columns.value


@dataclass(frozen=True, slots=True)
class _Line:
    """A row ready to draw: texts by column, and bars from 0 to 1 behind some of them."""

    key: Key
    network: str
    texts: tuple[str, ...]
    bars: tuple[float, ...]
    error: Colour


class RankingPanel:
    """The ranking; rows are updated four times a second, and only visible rows are drawn."""

    def __init__(self) -> None:
        self.recent_only = False
        self.selected: Key | None = None
        self.column, self.descending = 1, True
        self.lines: list[_Line] = []
        self._recent = RecentSums()
        self._best = Best()
        self._details: tuple[Key, list[tuple[str, Colour]]] | None = None

    def refresh(self, view: ShownView, now_s: float) -> None:
        """Computes and sorts the rows again."""
        self._count(view)

    def watch(self, view: ShownView, now_s: float) -> None:
        """Saves the operators' sums from time to time, for "last 5 s"."""
        self._recent.keep(now_s, view.operators)

    def _count(self, view: ShownView) -> None:
        operators = view.operators
        found = rows(operators, self._recent.before() if self.recent_only else None)
        self._best = self._best.raised(found)
        top = max((row.share for row in found), default=1.0)
        self.lines = [self._line(row, top) for row in ordered(found, self.column, self.descending)]

    def _line(self, row: RankRow, top_share: float) -> _Line:
        best = self._best
        off = abs(row.error)
        return _Line(
            row.key,
            row.network,
            (
                row.title,
                f"{100 * row.share:.1f}",
                _short(row.total_ms),
                _short(row.runs),
                _short(row.average_ms),
                f"{100 * row.error:+.0f} %",
                _short(row.gflops),
                _short(row.gbytes),
            ),
            (
                0.0, row.share / top_share, 0.0, 0.0, 0.0, 0.0,
                row.gflops / best.gflops if best.gflops else 0.0,
                row.gbytes / best.gbytes if best.gbytes else 0.0,
            ),
            palette.TEXT if off < 0.3 else palette.WARN if off < 1 else palette.BAD,
        )  # fmt: skip

    def draw(self, view: ShownView, room: Room) -> None:
        """Draws the table, and the selected operator below it."""
        if imgui.radio_button("since the start", not self.recent_only):
            self._choose(False, view)
        imgui.same_line()
        if imgui.radio_button("last 5 s", self.recent_only):
            self._choose(True, view)
        if not self.lines:
            words.text("no operator has been timed", palette.DIM)
            return
        shown = [c for c in _COLUMNS if c.compact or not room.compact]
        line = imgui.get_text_line_height() + 2 * imgui.get_style().cell_padding.y
        height = (room.ranking_rows + 1) * line + 2
        if imgui.begin_table("ranking", len(shown), _TABLE, ImVec2(0, height)):
            self._head(shown, view)
            self._body(shown, view)
            imgui.end_table()
        self._selected(view)

    def _choose(self, recent_only: bool, view: ShownView) -> None:
        self.recent_only = recent_only
        self._count(view)

    def _head(self, shown: list[_Column], view: ShownView) -> None:
        imgui.table_setup_scroll_freeze(0, 1)
        character = 0.52 * imgui.get_font_size()
        flag = imgui.TableColumnFlags_
        for column in shown:
            flags = flag.prefer_sort_descending.value
            if column.number == 0:
                flags = flag.width_stretch.value
            if column.number == 1:
                flags |= flag.default_sort.value
            width = column.width * character
            imgui.table_setup_column(column.title, flags, width, column.number)
        imgui.table_next_row(imgui.TableRowFlags_.headers.value)
        for column in shown:
            imgui.table_next_column()
            imgui.table_header(column.title)
            imgui.set_item_tooltip(column.hint)
        specs = imgui.table_get_sort_specs()
        if specs.specs_dirty and specs.specs_count:
            chosen = specs.get_specs(0)
            self.column = chosen.column_user_id
            self.descending = chosen.sort_direction == imgui.SortDirection.descending
            specs.specs_dirty = False
            self._count(view)

    def _body(self, shown: list[_Column], view: ShownView) -> None:
        clipper = imgui.ListClipper()
        clipper.begin(len(self.lines))
        while clipper.step():
            for index in range(clipper.display_start, clipper.display_end):
                line = self.lines[index]
                self._row(line, palette.network_colour(line.network, view.sessions), shown)

    def _row(self, line: _Line, colour: Colour, shown: list[_Column]) -> None:
        imgui.table_next_row()
        imgui.table_next_column()
        corner = imgui.get_cursor_screen_pos()
        height = imgui.get_text_line_height()
        words.rectangle(corner.x - 1, corner.y + 1, 3.0, height - 2, colour)
        imgui.set_cursor_pos_x(imgui.get_cursor_pos_x() + 6)
        chosen = self.selected == line.key
        if imgui.selectable(f"##{line.key}", chosen, _SELECTABLE)[0]:
            self.selected = None if chosen else line.key
        imgui.same_line(0.0, 0.0)
        words.text(line.network, colour)
        imgui.same_line()
        imgui.text(line.texts[0])
        for column in shown[1:]:
            imgui.table_next_column()
            said, bar = line.texts[column.number], line.bars[column.number]
            width = imgui.get_content_region_avail().x
            if bar > 0:
                at = imgui.get_cursor_screen_pos()
                words.rectangle(at.x, at.y, bar * width, height, palette.faded(colour, 0.28))
            space = width - imgui.calc_text_size(said).x
            imgui.set_cursor_pos_x(imgui.get_cursor_pos_x() + max(0.0, space))
            if column.title == "pred.":
                words.text(said, line.error)
            else:
                imgui.text(said)

    def _selected(self, view: ShownView) -> None:
        if self.selected is None:
            return
        if self._details is None or self._details[0] != self.selected:
            self._details = self.selected, details(view, self.selected)
        imgui.push_text_wrap_pos(0.0)
        for said, colour in self._details[1]:
            words.text(said, colour)
        imgui.pop_text_wrap_pos()


def details(view: ShownView, key: Key) -> list[tuple[str, Colour]]:
    """Returns lines about an operator: its name, its line of the model, its kernel."""
    operator = view.operators.get(key)
    if operator is None:
        return []
    colour = palette.network_colour(operator.network, view.sessions)
    lines = [(f"{operator.network}: {operator.title}", colour)]
    session = view.sessions.get(operator.network)
    plan = None if session is None else session.plan
    step = None if plan is None else plan.steps[operator.step]
    if step is not None and step.source is not None and step.source.text:
        lines.append((" ".join(step.source.text.split()), palette.TEXT))
    count = 0 if step is None else step.groups
    groups = f", {count} workgroup{'' if count == 1 else 's'}" if count else ""
    place = operator.line.replace("\\", "/").split("/")[-1] or "no line of the model"
    lines.append((f"{place}   kernel {operator.kernel}{groups}", palette.DIM))
    if operator.flops or operator.bytes:
        work = f"{_scaled(operator.flops)}FLOP, {_scaled(operator.bytes)}B per run"
        lines.append((work, palette.DIM))
    return lines


def _short(value: float) -> str:
    """Returns a number with at most three significant digits."""
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _scaled(value: float) -> str:
    """Returns a number with a unit prefix: "3.1 M"."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
