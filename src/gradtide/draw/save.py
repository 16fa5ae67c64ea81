"""Writes a figure to a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save"]

MOST_PIXELS = 16_000  # of a side; many viewers refuse more


def save(figure: "Figure", path: Path) -> None:
    """Writes the figure; the same figure always gives the same bytes."""
    import matplotlib as mpl

    kinds = (".svg", ".png", ".pdf")
    if path.suffix.lower() not in kinds:
        raise OutputError(f"can't draw to {path}: its name must end in {', '.join(kinds)}")
    date = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        with mpl.rc_context({"svg.hashsalt": "gradtide"}):
            figure.savefig(
                path, dpi=min(150, MOST_PIXELS / max(figure.get_size_inches())), facecolor="white", metadata=date
            )
    except OSError as error:
        raise OutputError(f"can't draw to {path}: {error.strerror}; name another file") from None
