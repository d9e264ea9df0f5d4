"""The section of operators: a sortable table by cost, with details of the selected one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imgui_bundle import ImVec2, imgui

from cml_engine.ir.graph import Graph
from cml_engine.panel import palette
from cml_engine.panel.drawing import widgets
from cml_engine.panel.frames import Key
from cml_engine.panel.palette import Colour
from cml_engine.panel.panel import Layout, PanelSection, PanelView
from cml_engine.panel.ranking import RankRow, RecentTimes, ordered, rows


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    #: the value of a row that it shows and sorts by
    value: str
    #: the widest text that it holds
    sample: str
    #: the column with the largest value is left out first where the table is narrow; 0: never
    spare: int
    hint: str


_COLUMNS = (
    _Column(
        "operator", "name", "", 0,
        "The network, the kind of operator, and the tensor that it computes, by its name in the\n"
        "model's file. 2/3 is the second of three steps that compute one operator.",
    ),
    _Column("%", "share", "88.8", 0,
        "Share of the GPU time of all networks. The bar compares with the slowest operator."),
    _Column("ms", "total_ms", "888k", 0, "GPU time of all executions together."),
    _Column("runs", "runs", "888k", 3, "How many times the whole operator was executed."),
    _Column("avg ms", "average_ms", "~8.888", 1,
        "GPU time of one execution of the operator, the median of those that were timed alone.\n"
        "~ is an estimate: it was not timed alone yet."),
    _Column(
        "planned", "error", "+888 %", 2,
        "How far the scheduler's prediction was from the measured time: +50 % predicted half more\n"
        "than it took, -50 % half of it. A large error makes frames late or leaves budget unused.",
    ),
    _Column("GFLOP/s", "gflops", "8888", 5,
        "Arithmetic per second. The bar compares with the best that any operator reached."),
    _Column("GB/s", "gbytes", "88.8", 4,
        "Memory read and written per second. The bar compares with the best so far."),
)  # fmt: skip
#: ems; a longer name is shortened before columns are left out
_NAME_EM = 22.0
#: points between the coloured mark of a network, its name and the operator
_MARK, _GAP = 6.0, 5.0
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
class RankLine:
    """A row of the ranking as it is drawn: texts by column, and bars of 0 to 1 behind some of them.

    ``widths`` are the texts' widths in points, ``colour`` is the network's and ``shade`` the bars'.
    """

    colour: Colour
    shade: Colour
    texts: dict[str, str]
    widths: dict[str, float]
    bars: dict[str, float]

    @classmethod
    def of(cls, row: RankRow, colour: Colour, best: Mapping[str, float]) -> RankLine:
        texts = {c.value: _short_number(getattr(row, c.value)) for c in _COLUMNS[1:]}
        texts["share"] = f"{100 * row.share:.1f}"
        texts["error"] = f"{100 * row.error:+.0f} %"
        if not row.is_measured:
            texts["average_ms"], texts["error"] = f"~{texts['average_ms']}", "?"
        widths = {value: float(imgui.calc_text_size(text).x) for value, text in texts.items()}
        bars = {value: getattr(row, value) / maximum for value, maximum in best.items() if maximum}
        return cls(colour, palette.faded(colour, 0.28), texts, widths, bars)


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
        #: the value to sort by
        self.sorted_by, self.descending = "share", True
        self.rows: list[RankRow] = []
        #: the texts of the rows that were drawn since they were computed
        self._lines: dict[Key, RankLine] = {}
        self._recent = RecentTimes()
        #: the columns with their widths, for a width of the table and a font size
        self._fitted: tuple[tuple[float, float], list[tuple[_Column, float]]] | None = None
        #: the names as they are drawn, by row, each with the width in points that it fits into
        self._names: dict[Key, tuple[float, str]] = {}
        #: the values that fill the bars: the largest share now, the highest rates ever
        self._best = {"share": 1.0, "gflops": 0.0, "gbytes": 0.0}
        self._details: tuple[Key, list[tuple[str, Colour]]] | None = None

    def refresh(self, view: PanelView, now_s: float) -> None:
        """Computes and sorts the rows of the table again."""
        self._update_rows(view)

    def watch(self, view: PanelView, now_s: float) -> None:
        """Saves the operators' accumulated costs from time to time, for the choice "last 5 s"."""
        self._recent.save(now_s, view.operators)

    def _update_rows(self, view: PanelView) -> None:
        ranked = rows(view.operators, self._recent.before() if self.recent_only else None)
        self._best["share"] = 0.0
        for value, maximum in self._best.items():
            self._best[value] = max([maximum, *(getattr(row, value) for row in ranked)])
        self.rows = ordered(ranked, self.sorted_by, self.descending)
        self._lines, self._names, self._fitted = {}, {}, None

    def draw(self, view: PanelView, layout: Layout) -> None:
        """Draws the choice of the period, the table, and the selected operator below it."""
        if imgui.radio_button("since the start", not self.recent_only):
            self._choose(False, view)
        imgui.same_line()
        if imgui.radio_button("last 5 s", self.recent_only):
            self._choose(True, view)
        if not self.rows:
            widgets.text("no operator has been timed", palette.DIM)
            return
        columns = self._columns(imgui.get_content_region_avail().x, view)
        line = imgui.get_text_line_height() + 2 * imgui.get_style().cell_padding.y
        height = (layout.ranking_rows + 1) * line
        if imgui.begin_table("ranking", len(columns), _TABLE, ImVec2(0, height)):
            self._head(columns, view)
            self._body(columns, view)
            imgui.end_table()
        self._selected(view)

    def _columns(self, width: float, view: PanelView) -> list[tuple[_Column, float]]:
        """Returns the columns that fit into ``width`` points, each with its width.

        They are chosen again when the rows, the width or the font change.
        """
        key = width, imgui.get_font_size()
        if self._fitted is None or self._fitted[0] != key:
            columns = _columns_in(width, self._name_width(view))
            self._fitted = key, [(column, _width(column)) for column in columns]
        return self._fitted[1]

    def _name_width(self, view: PanelView) -> float:
        """Returns the width in points of the column of names: the longest name's, up to a limit."""
        only = len(view.sessions) == 1
        longest = max((row.title if only else row.name for row in self.rows), key=len)
        limit = float(_NAME_EM * imgui.get_font_size())
        return min(limit, float(imgui.calc_text_size(longest).x) + _MARK + 2 * _GAP)

    def _choose(self, recent_only: bool, view: PanelView) -> None:
        self.recent_only = recent_only
        self._update_rows(view)

    def _head(self, columns: list[tuple[_Column, float]], view: PanelView) -> None:
        imgui.table_setup_scroll_freeze(0, 1)
        flag = imgui.TableColumnFlags_
        for column, width in columns:
            flags = flag.prefer_sort_descending.value
            if column.value == "name":
                flags = flag.width_stretch.value
            if column.value == "share":
                flags |= flag.default_sort.value
            number = _COLUMNS.index(column)
            imgui.table_setup_column(column.title, flags, width, number)
        imgui.table_next_row(imgui.TableRowFlags_.headers.value)
        for column, _ in columns:
            imgui.table_next_column()
            imgui.table_header(column.title)
            imgui.set_item_tooltip(column.hint)
        specs = imgui.table_get_sort_specs()
        if specs.specs_dirty and specs.specs_count:
            chosen = specs.get_specs(0)
            self.sorted_by = _COLUMNS[chosen.column_user_id].value
            self.descending = chosen.sort_direction == imgui.SortDirection.descending
            specs.specs_dirty = False
            self._update_rows(view)

    def _body(self, columns: list[tuple[_Column, float]], view: PanelView) -> None:
        clipper = imgui.ListClipper()
        clipper.begin(len(self.rows))
        # the left end and the width of each column in points, by its value
        places: dict[str, tuple[float, float]] = {}
        while clipper.step():
            for index in range(clipper.display_start, clipper.display_end):
                self._row(self.rows[index], columns, places, view)

    def _row(
        self,
        row: RankRow,
        columns: list[tuple[_Column, float]],
        places: dict[str, tuple[float, float]],
        view: PanelView,
    ) -> None:
        """Draws a row: few calls of imgui, because there are up to sixteen rows in every frame."""
        imgui.table_next_row()
        imgui.table_next_column()
        corner, height = imgui.get_cursor_screen_pos(), imgui.get_text_line_height()
        y, line = corner.y, self._lines.get(row.key)
        if line is None:
            colour = palette.network_colour(row.network, view.sessions)
            line = self._lines[row.key] = RankLine.of(row, colour, self._best)
        space = imgui.get_content_region_avail().x
        chosen = self.selected == row.key
        if imgui.selectable(f"##{row.key}", chosen, _SELECTABLE)[0]:
            self.selected = None if chosen else row.key
        if imgui.is_item_hovered(imgui.HoveredFlags_.for_tooltip.value):
            imgui.set_tooltip("\n".join(content for content, _ in details(view, row.key)))
        draw = imgui.get_window_draw_list()
        widgets.rectangle(corner.x - 1, y + 1, 3.0, height - 2, line.colour)
        self._name(row, line.colour, ImVec2(corner.x + _MARK, y), space - _MARK, view)
        for column, _ in columns[1:]:
            imgui.table_next_column()
            value = column.value
            if value not in places:
                places[value] = imgui.get_cursor_screen_pos().x, imgui.get_content_region_avail().x
            x, width = places[value]
            bar = line.bars.get(value, 0.0)
            if bar > 0:
                widgets.rectangle(x, y, bar * width, height, line.shade)
            at = ImVec2(x + max(0.0, width - line.widths[value]), y)
            draw.add_text(at, widgets.packed(_cell_colour(row, value)), line.texts[value])

    def _name(
        self, row: RankRow, colour: Colour, at: ImVec2, space: float, view: PanelView
    ) -> None:
        """Draws the network's name, unless there is only one, and the operator within ``space``."""
        draw = imgui.get_window_draw_list()
        if len(view.sessions) > 1:
            draw.add_text(at, widgets.packed(colour), row.network)
            used = imgui.calc_text_size(row.network).x + _GAP
            at, space = ImVec2(at.x + used, at.y), space - used
        width, name = self._names.get(row.key, (0.0, ""))
        if width != space:
            name = widgets.shortened(row.title, space)
            self._names[row.key] = space, name
        draw.add_text(at, widgets.packed(palette.TEXT), name)

    def _selected(self, view: PanelView) -> None:
        if self.selected is None:
            return
        if self._details is None or self._details[0] != self.selected:
            self._details = self.selected, details(view, self.selected)
        imgui.push_text_wrap_pos(0.0)
        for content, colour in self._details[1]:
            widgets.text(content, colour)
        imgui.pop_text_wrap_pos()


def _cell_colour(row: RankRow, value: str) -> Colour:
    error = abs(row.error) if value == "error" else 0.0
    return palette.TEXT if error < 0.3 else palette.WARN if error < 1 else palette.BAD


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
    columns = list(_COLUMNS)
    gap = 2 * imgui.get_style().cell_padding.x
    bar = imgui.get_style().scrollbar_size
    need = name_width + bar + sum(_width(c) + gap for c in columns)
    while need > width and (last := max(columns, key=lambda c: c.spare)).spare:
        columns.remove(last)
        need -= _width(last) + gap
    return columns


def details(view: PanelView, key: Key) -> list[tuple[str, Colour]]:
    """Returns lines of text about an operator, each with its colour; none for an unknown operator.

    The lines have its network and title, the shapes that it reads and computes, its line of the
    model, its kernel and its work.
    """
    operator = view.operators.get(key)
    if operator is None:
        return []
    colour = palette.network_colour(operator.network, view.sessions)
    part = ", step {} of {}".format(*operator.part.split("/")) if operator.part else ""
    lines = [(f"{operator.network}: {operator.title}{part}", colour)]
    session = view.sessions.get(operator.network)
    plan = None if session is None else session.plan
    step = None if plan is None else plan.steps[operator.step]
    if session is not None and (shapes := _shapes(session.graph, operator.title)):
        lines.append((shapes, palette.TEXT))
    if step is not None and step.source is not None and step.source.text:
        lines.append((" ".join(step.source.text.split()), palette.TEXT))
    count = 0 if step is None else step.groups
    groups = f", {count} workgroup{'' if count == 1 else 's'}" if count else ""
    position = operator.line.replace("\\", "/").split("/")[-1] or "no line of the model"
    lines.append((f"{position}   kernel {operator.kernel}{groups}", palette.DIM))
    if operator.flops or operator.bytes:
        work = f"{_scaled(operator.flops)}FLOP, {_scaled(operator.bytes)}B per run"
        lines.append((work, palette.DIM))
    return lines


def _shapes(graph: Graph, title: str) -> str:
    """Returns the shapes that a node computes and reads, constants left out; "" if unknown."""
    node = next((node for node in graph.nodes if node.title == title), None)
    if node is None:
        return ""
    read = [name for name in node.reads if name not in graph.constants]
    read_text, computed = (
        ", ".join(str(list(graph.facts[name].shape)) for name in names if name in graph.facts)
        for names in (read, node.outputs)
    )
    return f"{computed} from {read_text}"


def _short_number(value: float) -> str:
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
