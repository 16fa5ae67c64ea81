"""A history as a table and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradtide.errors import ConfigError, OutputError
from gradtide.extras import require

__all__ = ["as_table", "draw"]

Columns = Mapping[str, Sequence[float | None]]


def as_table(columns: Columns, remarks: Mapping[str, str]) -> str:
    """A line an epoch, aligned; a column that has fewer entries (a resumed run's new metric) is aligned at its end."""
    if not columns:
        return "no epoch is over yet"
    epochs = max(map(len, columns.values()))
    table = {"epoch": [str(epoch) for epoch in range(1, epochs + 1)]}
    for name, values in columns.items():
        cells = ["" if value is None else f"{value:.4g}" for value in values]
        table[name] = [""] * (epochs - len(cells)) + cells
    widths = {name: max(map(len, [name, *cells])) for name, cells in table.items()}
    rows = [list(table), *zip(*table.values(), strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths.values(), strict=True)) for row in rows]
    return "\n".join([*lines, *(f"{name}: {text}" for name, text in remarks.items() if text)])


def draw(columns: Columns, path: str) -> None:
    """Losses above, everything else below, each over epochs."""
    if not columns:
        raise ConfigError("there is nothing to plot: no epoch is over yet")
    require("plot", "plotting a history")
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
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"can't draw into {path}: {error}; name a file that ends in .png, .svg or .pdf") from error
