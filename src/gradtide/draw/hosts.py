"""The plot of a cluster's time over its number of hosts, with the lower bound beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.draw.save import save
from gradtide.errors import ScheduleError
from gradtide.extras import require
from gradtide.topology.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_hosts"]

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2a2", "#8c564b", "#e377c2")
INK = "#333333"


def draw_hosts(
    path: Path,
    hosts: Sequence[int],
    seconds: Sequence[float],
    bound_seconds: Sequence[float],
    names: Sequence[str],
    title: str = "",
) -> None:
    """Predicted seconds over the number of hosts to an .svg, .png or .pdf file; a dot's colour is its strategy."""
    require("plot", "drawing")
    from matplotlib.figure import Figure

    if not len(hosts) == len(seconds) == len(bound_seconds) == len(names) >= 2:
        raise ScheduleError("a plot over hosts needs two numbers of hosts or more, with a time and a bound for each")
    figure = Figure(figsize=(9.2, 5.4))
    axes = figure.add_axes((0.1, 0.12, 0.68, 0.76))
    axes.plot(hosts, seconds, color=INK, lw=1.6, zorder=2)
    axes.plot(hosts, bound_seconds, color="black", ls=(0, (6, 3)), lw=1.3, label="lower bound", zorder=1)
    for colour, name in zip(COLOURS * 4, dict.fromkeys(names), strict=False):
        mine = [i for i, other in enumerate(names) if other == name]
        xs, ys = [hosts[i] for i in mine], [seconds[i] for i in mine]
        axes.plot(xs, ys, "o", ms=7, color=colour, label=name, zorder=3)
    _draw_axes(axes, hosts, [*seconds, *bound_seconds])
    figure.text(0.44, 0.945, title, ha="center", va="center", fontsize=13, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=9.5)
    save(figure, path)


def _draw_axes(axes: "Axes", hosts: Sequence[int], times: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set(xlabel="hosts", ylabel="predicted time", xlim=(hosts[0] / 1.15, hosts[-1] * 1.15))
    axes.set_xticks(list(hosts), [f"{count:,}" for count in hosts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, max(times) * 1.15)
    axes.yaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(float(f"{value:.4g}"))))
    axes.grid(color="#dddddd", lw=0.7)
    axes.set_axisbelow(True)
