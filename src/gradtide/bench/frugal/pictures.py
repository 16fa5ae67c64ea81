"""Accuracy over what was sent and over time."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from gradtide.bench.frugal.learner import LearningCurve
from gradtide.extras import require

__all__ = ["draw_accuracy"]

# Told apart by those who don't tell red from green, too.
_COLOURS = ("#000000", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c")


def draw_accuracy(runs: Sequence[LearningCurve], path: Path, title: str) -> None:
    """Each way's mean over the seeds, and the band from its least to its most."""
    require("plot", "drawing")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for name, colour in zip(dict.fromkeys(run.name for run in runs), cycle(_COLOURS), strict=False):
        of_way = [run for run in runs if run.name == name]
        for panel, what in zip(panels, ("megabytes", "seconds"), strict=True):
            _draw(panel, of_way, what, name, colour)
    panels[0].set(xlabel="MB that each worker sent", ylabel="test accuracy", xscale="log")
    panels[1].set(xlabel="seconds of training")
    lowest = min(min(run.accuracy[1:]) for run in runs)
    panels[0].set_ylim(bottom=lowest - 0.01)
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(title, fontsize=10)
    partial = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    partial.replace(path)


def _draw(panel: Any, runs: Sequence[LearningCurve], what: str, name: str, colour: str) -> None:
    columns = list(zip(*(run.accuracy for run in runs), strict=True))
    places = [sum(at) / len(at) for at in zip(*(getattr(run, what) for run in runs), strict=True)]
    panel.plot(places, [sum(column) / len(column) for column in columns], color=colour, label=name, marker=".")
    panel.fill_between(places, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, lw=0)
