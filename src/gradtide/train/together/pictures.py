"""Where each worker's time went, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from gradtide.observe.meter import PHASES, Totals

__all__ = ["draw_time"]

# Work in colours, waiting in grey; told apart by those who don't tell red from green, too.
_COLOURS = {
    "compute": "#0072b2",
    "push": "#e69f00",
    "wait": "#c8c8c8",
    "update": "#009e73",
    "data": "#cc79a7",
    "evaluate": "#56b4e9",
}
_LABELS = {"update": "pull and update", "data": "wait for data"}


def draw_time(workers: Sequence[Totals], path: Path) -> None:
    """A bar a worker, cut into what it did."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.5 * len(workers)), layout="constrained")
    names = [f"worker {rank}" for rank in range(len(workers))]
    lefts, longest = [0.0] * len(workers), max(_whole(totals) for totals in workers)
    for phase in PHASES:
        widths = [_seconds(totals, phase) for totals in workers]
        label = _LABELS.get(phase, phase)
        bars = axes.barh(names, widths, left=lefts, color=_COLOURS[phase], label=label, height=0.6)
        shares = [
            f"{100 * width / _whole(totals):.0f} %" if width > 0.05 * longest else ""
            for width, totals in zip(widths, workers, strict=True)
        ]
        axes.bar_label(bars, shares, label_type="center", fontsize=8, color=_ink(phase))
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="seconds", xlim=(0, longest * 1.01))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(PHASES), frameon=False, fontsize=8)
    partial = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    partial.replace(path)


def _seconds(totals: Totals, phase: str) -> float:
    return float(getattr(totals, f"{phase}_s"))


def _whole(totals: Totals) -> float:
    return (totals.train_s + totals.evaluate_s) or 1e-9


def _ink(phase: str) -> str:
    return "white" if phase in ("compute", "update") else "black"
