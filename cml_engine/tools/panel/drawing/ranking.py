"""The section of operators: a sortable table by cost, with details of the selected one."""

from __future__ import annotations

from dataclasses import dataclass

from imgui_bundle import ImVec2, imgui

from cml_engine.tools.panel import palette
from cml_engine.tools.panel.drawing import widgets
from cml_engine.tools.panel.operators import Key
from cml_engine.tools.panel.palette import Colour
from cml_engine.tools.panel.ranking import Best, RankRow, RecentSums, ordered, rows
from cml_engine.tools.panel.section import Layout, PanelSection, PanelView


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    #: the column to sort by, as numbered in ``ranking.ordered``
    number: int
    #: the widest text that it holds
    sample: str
    #: the column with the largest value is left out first where the table is narrow; 0: never
    spare: int
    hint: str


_COLUMNS = (
    _Column("operator", 0, "", 0, "network and operator"),
    _Column("%", 1, "88.8", 0, "of all GPU time for networks; the bar compares with the first"),
    _Column("ms", 2, "888k", 0, "GPU time in all"),
    _Column("runs", 3, "888k", 3, "whole executions"),
    _Column("avg ms", 4, "8.888", 1, "measured GPU time of a whole execution"),
    _Column("planned", 5, "+888 %", 2, "planned against measured: +50 % was planned as half more"),
    _Column("GFLOP/s", 6, "8888", 5, "arithmetic; the bar compares with the best seen"),
    _Column("GB/s", 7, "88.8", 4, "memory read and written; the bar compares with the best seen"),
)
#: ems; a longer name is shortened before columns are left out
_NAME_EM = 12.5
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
    """A row of the table as texts by column, with bars from 0 to 1 behind some of them."""

    key: Key
    network: str
    texts: tuple[str, ...]
    bars: tuple[float, ...]
    error: Colour


class RankingPanel(PanelSection):
    """The section with the table of operators; its rows are computed four times a second.

    Only visible rows are drawn.
    """

    title = "operators"
    column = "right"
    opens_from_em = 0.0

    def __init__(self) -> None:
        self.recent_only = False
        self.selected: Key | None = None
        #: the number of the column to sort by
        self.sorted_by, self.descending = 1, True
        self.lines: list[_Line] = []
        self._recent = RecentSums()
        self._best = Best()
        self._details: tuple[Key, list[tuple[str, Colour]]] | None = None

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes and sorts the rows of the table again."""
        self._count(view)

    def watch(self, view: PanelView, now_s: float) -> None:
        """Saves the operators' accumulated costs from time to time, for the choice "last 5 s"."""
        self._recent.keep(now_s, view.operators)

    def _count(self, view: PanelView) -> None:
        operators = view.operators
        found = rows(operators, self._recent.before() if self.recent_only else None)
        self._best = self._best.raised(found)
        top = max((row.share for row in found), default=1.0)
        self.lines = [
            self._line(row, top) for row in ordered(found, self.sorted_by, self.descending)
        ]

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

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the choice of the period, the table, and the selected operator below it."""
        if imgui.radio_button("since the start", not self.recent_only):
            self._choose(False, view)
        imgui.same_line()
        if imgui.radio_button("last 5 s", self.recent_only):
            self._choose(True, view)
        if not self.lines:
            widgets.text("no operator has been timed", palette.DIM)
            return
        shown = _columns_in(imgui.get_content_region_avail().x, self._name_width())
        line = imgui.get_text_line_height() + 2 * imgui.get_style().cell_padding.y
        height = (layout.ranking_rows + 1) * line
        if imgui.begin_table("ranking", len(shown), _TABLE, ImVec2(0, height)):
            self._head(shown, view)
            self._body(shown, view)
            imgui.end_table()
        self._selected(view)

    def _name_width(self) -> float:
        """Returns the width in points of the column of names: the longest name's, up to a limit."""
        longest = max((f"{line.network} {line.texts[0]}" for line in self.lines), key=len)
        room = float(_NAME_EM * imgui.get_font_size())
        return min(room, float(imgui.calc_text_size(longest).x) + 14.0)

    def _choose(self, recent_only: bool, view: PanelView) -> None:
        self.recent_only = recent_only
        self._count(view)

    def _head(self, shown: list[_Column], view: PanelView) -> None:
        imgui.table_setup_scroll_freeze(0, 1)
        flag = imgui.TableColumnFlags_
        for column in shown:
            flags = flag.prefer_sort_descending.value
            if column.number == 0:
                flags = flag.width_stretch.value
            if column.number == 1:
                flags |= flag.default_sort.value
            imgui.table_setup_column(column.title, flags, _width(column), column.number)
        imgui.table_next_row(imgui.TableRowFlags_.headers.value)
        for column in shown:
            imgui.table_next_column()
            imgui.table_header(column.title)
            imgui.set_item_tooltip(column.hint)
        specs = imgui.table_get_sort_specs()
        if specs.specs_dirty and specs.specs_count:
            chosen = specs.get_specs(0)
            self.sorted_by = chosen.column_user_id
            self.descending = chosen.sort_direction == imgui.SortDirection.descending
            specs.specs_dirty = False
            self._count(view)

    def _body(self, shown: list[_Column], view: PanelView) -> None:
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
        widgets.rectangle(corner.x - 1, corner.y + 1, 3.0, height - 2, colour)
        imgui.set_cursor_pos_x(imgui.get_cursor_pos_x() + 6)
        chosen = self.selected == line.key
        if imgui.selectable(f"##{line.key}", chosen, _SELECTABLE)[0]:
            self.selected = None if chosen else line.key
        imgui.same_line(0.0, 0.0)
        space = imgui.get_content_region_avail().x
        widgets.text(line.network, colour)
        imgui.same_line(0.0, 5.0)
        space -= imgui.calc_text_size(line.network).x + 5.0
        imgui.text_unformatted(widgets.shortened(line.texts[0], space))
        for column in shown[1:]:
            imgui.table_next_column()
            said, bar = line.texts[column.number], line.bars[column.number]
            width = imgui.get_content_region_avail().x
            if bar > 0:
                at = imgui.get_cursor_screen_pos()
                widgets.rectangle(at.x, at.y, bar * width, height, palette.faded(colour, 0.28))
            space = width - imgui.calc_text_size(said).x
            imgui.set_cursor_pos_x(imgui.get_cursor_pos_x() + max(0.0, space))
            if column.title == "planned":
                widgets.text(said, line.error)
            else:
                imgui.text(said)

    def _selected(self, view: PanelView) -> None:
        if self.selected is None:
            return
        if self._details is None or self._details[0] != self.selected:
            self._details = self.selected, details(view, self.selected)
        imgui.push_text_wrap_pos(0.0)
        for said, colour in self._details[1]:
            widgets.text(said, colour)
        imgui.pop_text_wrap_pos()


def _width(column: _Column) -> float:
    """Returns the points that a column needs for its heading, the sort arrow and its texts."""
    if not column.sample:
        return 0.0
    arrow = 0.65 * imgui.get_font_size() + imgui.get_style().frame_padding.x + 1
    heading = imgui.calc_text_size(column.title).x + arrow
    return float(max(heading, imgui.calc_text_size(column.sample).x))


def _columns_in(width: float, name_width: float) -> list[_Column]:
    """Returns the columns that fit into ``width`` points, beside names of ``name_width`` points.

    The columns that can best be spared are left out first.
    """
    shown = list(_COLUMNS)
    between = 2 * imgui.get_style().cell_padding.x
    bar = imgui.get_style().scrollbar_size
    need = name_width + bar + sum(_width(c) + between for c in shown)
    while need > width and (last := max(shown, key=lambda c: c.spare)).spare:
        shown.remove(last)
        need -= _width(last) + between
    return shown


def details(view: PanelView, key: Key) -> list[tuple[str, Colour]]:
    """Returns lines of text about an operator, each with its colour; none for an unknown operator.

    The lines have its network and title, its line of the model, its kernel and its work.
    """
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
    """Returns a number as text with about three significant digits; large ones get a "k"."""
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _scaled(value: float) -> str:
    """Returns a number as text with three digits and a unit prefix, such as "3.1 M"."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
