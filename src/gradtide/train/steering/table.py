"""A history as a table and as a picture, in text, files and notebooks."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gradtide.draw.html import html_picture, html_table
from gradtide.draw.save import save
from gradtide.environment import in_notebook
from gradtide.errors import ConfigError
from gradtide.extras import require

__all__ = ["as_html", "as_table", "draw", "show"]

_NOTHING = "no epoch is over yet"
_MOST_ROWS = 20
_WHAT = "loss and metrics over epochs"
Columns = Mapping[str, Sequence[float | None]]


def as_table(columns: Columns, remarks: Mapping[str, str]) -> str:
    """A line an epoch, aligned; a column that has fewer entries (a resumed run's new metric) is aligned at its end."""
    if not columns:
        return _NOTHING
    table = _cells(columns)
    widths = {name: max(map(len, [name, *cells])) for name, cells in table.items()}
    rows = [list(table), *zip(*table.values(), strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths.values(), strict=True)) for row in rows]
    return "\n".join([*lines, *_said(remarks)])


def _said(remarks: Mapping[str, str]) -> list[str]:
    return [f"{name}: {text}" for name, text in remarks.items() if text]


def _cells(columns: Columns) -> dict[str, list[str]]:
    epochs = max(map(len, columns.values()))
    table = {"epoch": [str(epoch) for epoch in range(1, epochs + 1)]}
    for name, values in columns.items():
        cells = ["" if value is None else f"{value:.4g}" for value in values]
        table[name] = [""] * (epochs - len(cells)) + cells
    return table


def as_html(columns: Columns, remarks: Mapping[str, str]) -> str:
    """The picture, and below it the table: of many epochs the first and the last."""
    if not columns:
        return f"<p>{_NOTHING}</p>"
    table = _cells(columns)
    rows = [*zip(*table.values(), strict=True)]
    if len(rows) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        rows = [*rows[:half], ("…",) * len(table), *rows[-half:]]
    return html_picture(partial(draw, columns), _WHAT) + html_table([*table], rows, notes=_said(remarks))


def show(columns: Columns) -> None:
    """In the cell of a notebook."""
    if not in_notebook():
        raise ConfigError("say where to draw it: history.plot('curve.png'); without a name a notebook shows it")
    _check(columns)
    from IPython.display import HTML, display

    display(HTML(html_picture(partial(draw, columns), _WHAT)))


def _check(columns: Columns) -> None:
    if not columns:
        raise ConfigError("there is nothing to plot: no epoch is over yet")
    require("plot", "plotting a history")


def draw(columns: Columns, path: str | Path) -> None:
    """Losses above, everything else below, each over epochs."""
    _check(columns)
    import matplotlib.figure

    losses = {name: values for name, values in columns.items() if "loss" in name}
    others = {name: values for name, values in columns.items() if name not in losses and name != "lr"}
    shown = [part for part in (losses, others) if part]
    figure = matplotlib.figure.Figure(figsize=(7, 3.2 * len(shown)), layout="constrained")
    for axes, part in zip(figure.subplots(len(shown), squeeze=False).flat, shown, strict=True):
        for name, values in part.items():
            axes.plot(range(1, len(values) + 1), [float("nan") if v is None else v for v in values], "o-", label=name)
        axes.set_xlabel("epoch")
        axes.legend()
        axes.grid(alpha=0.3)
    with contextlib.suppress(OSError):  # then the picture can't be written either, which says why
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    save(figure, Path(path))
