"""A training step as a picture: what every device computes when, what is sent, who waits."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradtide.draw.save import save
from gradtide.errors import OutputError
from gradtide.extras import require
from gradtide.topology.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Arrow", "Bar", "draw_bars"]

# One hue a stage, as (forward, backward): light enough for black letters, dark enough for white ones.
HUES = (
    ("#9ecae9", "#2f6ea5"),
    ("#fdc58d", "#c8640c"),
    ("#a8dba0", "#2f8038"),
    ("#f2a9b0", "#b3303b"),
    ("#cdb9e6", "#6b45a0"),
    ("#ecd27a", "#8f6f00"),
    ("#9adcd4", "#17756d"),
    ("#f0b5db", "#a3387f"),
)
PLAIN = {"exchange": "#555555", "sum": "#b9b9b9", "norm": "#8a8a8a", "update": "#3a3a3a"}
NAMES = {"exchange": "exchange of shards", "sum": "sum of gradients", "norm": "norm of gradients", "update": "update"}
HATCH = {"weights": "////"}  # backward in two: the second half is hatched
ROW, TALL, STRIP = 0.62, 0.68, 0.16  # inches a row; of it, what computing takes, and what sums take below
WIDTH, LEFT, RIGHT, TOP = 11.0, 1.15, 0.95, 1.0  # inches
MOST_ROWS, MOST_ARROWS, MOST_BARS = 64, 400, 20_000
LETTER = 0.075  # inches of a letter of 8 points
COLUMNS = 5  # of the legend


class Bar(NamedTuple):
    """What a device does from when to when."""

    row: int
    kind: str  # forward, backward, inputs, weights; exchange, sum, norm, update
    stage: int
    label: str
    start_s: float
    end_s: float


class Arrow(NamedTuple):
    """A message between two devices."""

    source: int
    target: int
    back: bool
    start_s: float
    end_s: float


def draw_bars(
    path: Path,
    rows: Sequence[tuple[str, str]],
    bars: Sequence[Bar],
    arrows: Sequence[Arrow] = (),
    title: str = "",
    note: str = "",
) -> None:
    """Draws what every device does, to an .svg, .png or .pdf file. A row is (name, what stands at its right end)."""
    require("plot", "drawing")
    from matplotlib.figure import Figure

    if len(rows) > MOST_ROWS or len(bars) > MOST_BARS:
        text = (
            f"the step has {len(rows):,} devices and {len(bars):,} tasks; a picture holds {MOST_ROWS} and {MOST_BARS:,}"
        )
        raise OutputError(f"{text}; write a timeline, or draw a smaller step")
    seconds = max((bar.end_s for bar in bars), default=0.0) or 1.0
    legend = _legend(bars, bool(arrows) and len(arrows) <= MOST_ARROWS)
    bottom = 0.5 + 0.24 * -(-len(legend) // COLUMNS)
    height = TOP + ROW * len(rows) + bottom
    figure = Figure(figsize=(WIDTH, height))
    spot = (LEFT / WIDTH, bottom / height, (WIDTH - LEFT - RIGHT) / WIDTH, ROW * len(rows) / height)
    axes = figure.add_axes(spot)
    _draw_axes(axes, rows, seconds)
    for bar in bars:
        _draw_bar(axes, bar, seconds)
    for arrow in arrows if len(arrows) <= MOST_ARROWS else ():
        _draw_arrow(axes, arrow)
    _draw_words(figure, title, note, legend, height)
    save(figure, path)


def _draw_axes(axes: "Axes", rows: Sequence[tuple[str, str]], seconds: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set(xlim=(0, seconds), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: format_seconds(float(f"{value:.4g}")) if value else "0")
    )
    axes.grid(axis="x", color="#e4e4e4", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for at, (_, note) in enumerate(rows):
        axes.axhspan(at - 0.46, at + 0.46, color="#f6f6f6", lw=0, zorder=0)
        axes.annotate(note, (1, at), (6, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=8.5)


def _style(bar: Bar) -> dict[str, Any]:
    if bar.kind in PLAIN:
        return {"facecolor": PLAIN[bar.kind]}
    light, dark = HUES[bar.stage % len(HUES)]
    return {"facecolor": light if bar.kind == "forward" else dark, "hatch": HATCH.get(bar.kind)}


def _draw_bar(axes: "Axes", bar: Bar, seconds: float) -> None:
    """Computing is tall, sums go on below it; a number that does not fit is left out."""
    low = bar.kind == "sum"
    y = bar.row - TALL / 2 - STRIP / 2 + (TALL + 0.02 if low else 0.0)
    length, inches = bar.end_s - bar.start_s, WIDTH - LEFT - RIGHT
    if length <= 0:
        return
    height = STRIP if low else TALL
    style = _style(bar)
    axes.broken_barh([(bar.start_s, length)], (y, height), edgecolor="white", lw=0.5, zorder=2, **style)
    if not low and bar.label and len(bar.label) * LETTER + 0.03 < length / seconds * inches:
        colour = "black" if bar.kind == "forward" else "white"
        box = {"boxstyle": "round,pad=0.12", "fc": style["facecolor"], "ec": "none"} if style.get("hatch") else None
        middle = bar.start_s + length / 2
        axes.text(
            middle, y + height / 2, bar.label, ha="center", va="center", fontsize=8, color=colour, bbox=box, zorder=3
        )


def _draw_arrow(axes: "Axes", arrow: Arrow) -> None:
    """From the edge of one row's bars to the edge of the other's, behind those of rows in between."""
    down = arrow.target > arrow.source
    leave, reach = (TALL - STRIP) / 2, -(TALL + STRIP) / 2
    ends = (arrow.source + (leave if down else reach), arrow.target + (reach if down else leave))
    style = {"arrowstyle": "-|>", "color": "#222222" if not arrow.back else "#888888", "lw": 0.7, "mutation_scale": 5}
    style |= {"shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (arrow.end_s, ends[1]), (arrow.start_s, ends[0]), arrowprops=style, zorder=1)


def _legend(bars: Sequence[Bar], arrows: bool) -> list[tuple[str, Any]]:
    """(text, what it looks like) of all that is there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {bar.kind for bar in bars}
    halves = "inputs" in kinds
    found: list[tuple[str, Any]] = []
    for stage in sorted({bar.stage for bar in bars if bar.kind not in PLAIN})[: len(HUES)]:
        light, dark = HUES[stage % len(HUES)]
        found.append((f"stage {stage}", (Patch(fc=light), Patch(fc=dark))))
    shades = (("forward", "#d9d9d9", None), ("backward: inputs" if halves else "backward", "#666666", None))
    found += [(text, Patch(fc=colour, hatch=hatch, ec="white")) for text, colour, hatch in shades]
    if halves:
        found.append(("backward: weights", Patch(fc="#666666", hatch=HATCH["weights"], ec="white")))
    found += [(NAMES[kind], Patch(fc=PLAIN[kind])) for kind in PLAIN if kind in kinds]
    if any(bar.label for bar in bars):
        number = Line2D([], [], color="black", lw=0, marker="$2$", markersize=5.5, markeredgewidth=0.4)
        found.append(("number of the micro-batch, from 0", number))
    if arrows:
        found.append(("message", Line2D([], [], color="#222222", lw=0.9, marker=">", markevery=[1], markersize=3)))
    return found


def _draw_words(figure: "Figure", title: str, note: str, legend: Sequence[tuple[str, Any]], height: float) -> None:
    from matplotlib.legend_handler import HandlerTuple

    figure.text(LEFT / WIDTH, 1 - 0.3 / height, title, va="center", fontsize=13, fontweight="bold")
    figure.text(LEFT / WIDTH, 1 - 0.6 / height, note, va="center", fontsize=9.5, color="#333333")
    figure.legend(
        [look for _, look in legend],
        [text for text, _ in legend],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="lower left",
        bbox_to_anchor=(LEFT / WIDTH, 0.08 / height),
        borderaxespad=0,
        ncols=COLUMNS,
        fontsize=8.5,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.6,
    )
