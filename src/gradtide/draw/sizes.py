"""The plot that shows which strategy wins from which size on."""

import colorsys
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.draw.save import save
from gradtide.errors import ScheduleError
from gradtide.extras import require
from gradtide.topology.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Region", "colour_of", "draw_sizes", "winning_regions"]

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2a2", "#8c564b", "#e377c2")
DASHES = ((0, ()), (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
WIDTH, LEFT, RIGHT = 10.6, 0.85, 2.35  # inches: the figure, and what is left and right of the axes
TIE = 1.02  # who is that close to the fastest goes on winning: a lead of a hair's breadth is no region of its own
LETTER = 0.088  # inches of a letter of 9 points


@dataclass(frozen=True, slots=True)
class Region:
    """From this size to that one, this strategy is the fastest."""

    name: str
    from_bytes: float
    to_bytes: float


def winning_regions(sizes: Sequence[float], seconds: Mapping[str, Sequence[float]]) -> list[Region]:
    """Who is fastest where, with the crossings read off between the sizes (straight lines in log-log)."""
    winners: list[str] = []
    for i in range(len(sizes)):
        best, before = _winner(seconds, i), winners[-1] if winners else ""
        tied = bool(before) and seconds[before][i] <= seconds[best][i] * TIE
        winners.append(before if tied else best)
    regions: list[Region] = []
    start = float(sizes[0])
    for i, name in enumerate(winners):
        last = i + 1 == len(winners)
        if last or winners[i + 1] != name:
            end = float(sizes[i]) if last else _crossing(sizes, seconds[name], seconds[winners[i + 1]], i)
            regions.append(Region(name, start, end))
            start = end
    return regions


def _winner(seconds: Mapping[str, Sequence[float]], index: int) -> str:
    able = {name: times[index] for name, times in seconds.items() if math.isfinite(times[index])}
    if not able:
        raise ScheduleError("a plot over sizes needs at least one strategy with a time at every size")
    return min(able, key=lambda name: able[name])


def _crossing(sizes: Sequence[float], old: Sequence[float], new: Sequence[float], i: int) -> float:
    """Where the line of the new winner goes below that of the old one, between sizes i and i + 1."""
    low, high = math.log(sizes[i]), math.log(sizes[i + 1])
    ends = (old[i], old[i + 1], new[i], new[i + 1])
    if not all(math.isfinite(value) and value > 0 for value in ends):
        return math.exp((low + high) / 2)
    before, after = math.log(new[i] / old[i]), math.log(new[i + 1] / old[i + 1])
    share = before / (before - after) if before > after else 0.5
    return math.exp(low + share * (high - low))


def draw_sizes(
    path: Path,
    sizes: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    bound_seconds: Sequence[float] | None = None,
    title: str = "",
) -> None:
    """Predicted seconds of each strategy over sizes in bytes, to an .svg, .png or .pdf file.

    `seconds[name][i]` belongs to `sizes[i]`; nan or inf where a strategy does not apply. The winners' regions stand
    on top, the lower bound (if given) is dashed.
    """
    require("plot", "drawing")
    from matplotlib.figure import Figure

    _check(sizes, seconds, bound_seconds)
    regions = winning_regions(sizes, seconds)
    style = _styles(seconds, {region.name for region in regions})
    height = 6.6
    figure = Figure(figsize=(WIDTH, height))
    spot = (LEFT / WIDTH, 0.7 / height, (WIDTH - LEFT - RIGHT) / WIDTH, (height - 2.3) / height)
    axes = figure.add_axes(spot)
    _draw_lines(axes, sizes, seconds, bound_seconds, style)
    _draw_axes(axes, sizes, seconds)
    strip = figure.add_axes((spot[0], spot[1] + spot[3] + 0.1 / height, spot[2], 0.34 / height))
    _draw_regions(axes, strip, regions, style)
    middle = spot[0] + spot[2] / 2
    figure.text(middle, 1 - 0.3 / height, title, ha="center", va="center", fontsize=14, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(1.015, 1.0), fontsize=9, frameon=False, handlelength=2.6)
    save(figure, path)


def _check(
    sizes: Sequence[float], seconds: Mapping[str, Sequence[float]], bound_seconds: Sequence[float] | None
) -> None:
    if len(sizes) < 2 or any(b <= a for a, b in itertools.pairwise(sizes)) or sizes[0] <= 0:
        raise ScheduleError("a plot over sizes needs at least two sizes above zero, in increasing order")
    rows = {**seconds, **({"the bound": bound_seconds} if bound_seconds is not None else {})}
    for name, times in rows.items():
        if len(times) != len(sizes):
            raise ScheduleError(f"{name} has {len(times)} times for {len(sizes)} sizes; give one for each")


def colour_of(number: int) -> str:
    """No two alike: after the first ones, hues between them (a golden angle apart), darker and paler in turn."""
    if number < len(COLOURS):
        return COLOURS[number]
    beyond = number - len(COLOURS)
    rgb = colorsys.hls_to_rgb(
        (0.12 + beyond * 0.618034) % 1.0, 0.33 if beyond % 2 else 0.52, 0.75 if beyond % 2 else 0.45
    )
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _styles(seconds: Mapping[str, Sequence[float]], winners: set[str]) -> dict[str, dict[str, Any]]:
    """Winners thick and solid; the others thin, told apart by colour and dashes."""
    styles: dict[str, dict[str, Any]] = {}
    ordered = [n for n in seconds if n in winners] + [n for n in seconds if n not in winners]
    for i, name in enumerate(ordered):
        dashes = DASHES[i // len(COLOURS) % len(DASHES)]
        won = name in winners
        styles[name] = {"color": colour_of(i), "lw": 2.6 if won else 1.2, "alpha": 1.0 if won else 0.8}
        styles[name] |= {"linestyle": (0, ()) if won else DASHES[max(1, DASHES.index(dashes))]}
        styles[name] |= {"zorder": 3 if won else 2}
    return styles


def _draw_lines(
    axes: "Axes",
    sizes: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    bound_seconds: Sequence[float] | None,
    style: Mapping[str, Mapping[str, Any]],
) -> None:
    """The legend's order is that of the lines' right ends, so that the eye finds them."""

    def end(name: str) -> float:
        return next((t for t in reversed(seconds[name]) if math.isfinite(t)), 0.0)

    for name in sorted(seconds, key=lambda n: (-end(n), n)):
        times = [t if math.isfinite(t) else math.nan for t in seconds[name]]
        axes.plot(sizes, times, label=name, **style[name])
    if bound_seconds is not None:
        shown = [t if t > 0 else math.nan for t in bound_seconds]
        axes.plot(sizes, shown, color="black", linestyle=(0, (6, 3)), lw=1.3, label="lower bound", zorder=4)


def _draw_axes(axes: "Axes", sizes: Sequence[float], seconds: Mapping[str, Sequence[float]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), xlabel="size", ylabel="predicted time")
    finite = [t for times in seconds.values() for t in times if math.isfinite(t)]
    axes.set_ylim(min(finite) / 3, max(finite) * 1.5)
    for axis, text in ((axes.xaxis, format_size), (axes.yaxis, format_seconds)):
        axis.set_major_locator(LogLocator(base=10, numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(float(f"{value:.3g}"))))
    axes.grid(which="major", color="#dddddd", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def _draw_regions(
    axes: "Axes", strip: "Axes", regions: Sequence[Region], style: Mapping[str, Mapping[str, Any]]
) -> None:
    """A coloured band a winner. A name that does not fit into its band stands above it, in a row with room."""
    low, high = math.log10(regions[0].from_bytes), math.log10(regions[-1].to_bytes)
    scale = (WIDTH - LEFT - RIGHT) / (high - low)  # inches a decade
    rows: list[float] = []  # where the last label of each row above the band ends
    strip.set(xlim=(0, scale * (high - low)), ylim=(0, 1))
    strip.axis("off")
    for i, region in enumerate(regions):
        left, right = (scale * (math.log10(v) - low) for v in (region.from_bytes, region.to_bytes))
        colour = style[region.name]["color"]
        strip.axvspan(left, right, color=colour, lw=0)
        if i:
            axes.axvline(region.from_bytes, color="#888888", lw=0.9, ls=":", zorder=1)
        since = f" from {format_size(float(f'{region.from_bytes:.2g}'))}" if i else ""
        _name_region(strip, f"{region.name}{since}", (left, right), colour, rows)


def _name_region(strip: "Axes", text: str, span: tuple[float, float], colour: str, rows: list[float]) -> None:
    middle, needed = (span[0] + span[1]) / 2, len(text) * LETTER + 0.1
    if needed < span[1] - span[0]:
        strip.text(middle, 0.5, text, ha="center", va="center", fontsize=9, color="white", fontweight="bold")
        return
    most = strip.get_xlim()[1]
    start = min(max(middle - needed / 2, 0.0), most - needed)
    row = next((i for i, end in enumerate(rows) if end < start), len(rows))
    rows[row : row + 1] = [start + needed]
    y = 1.35 + 0.62 * row
    strip.plot([middle, middle], [1.0, y - 0.25], color=colour, lw=1.0, clip_on=False)
    strip.text(start + needed / 2, y, text, ha="center", va="center", fontsize=9, color=colour, clip_on=False)
