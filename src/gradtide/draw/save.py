"""Writes a figure to a file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.errors import OutputError
from gradtide.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_path", "save"]

KINDS = (".svg", ".png", ".pdf")
MOST_PIXELS = 16_000  # of a side; many viewers refuse more


def check_path(path: Path, *, picture: bool = True) -> None:
    """Refuses a file that nothing can be written to, before any work is done for it."""
    if picture:
        require("plot", "drawing")
    if picture and path.suffix.lower() not in KINDS:
        raise OutputError(f"can't draw to {path}: its name must end in {', '.join(KINDS)}")
    if path.is_dir():
        raise OutputError(f"can't write to {path}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OutputError(f"can't write to {path}: there is no folder {path.parent}; make it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"can't write to {path}: permission denied; name another file")


def save(figure: "Figure", path: Path) -> None:
    """Writes the figure; the same figure always gives the same bytes."""
    import matplotlib as mpl

    if path.suffix.lower() not in KINDS:
        raise OutputError(f"can't draw to {path}: its name must end in {', '.join(KINDS)}")
    date = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        with mpl.rc_context({"svg.hashsalt": "gradtide"}):
            figure.savefig(
                path, dpi=min(150, MOST_PIXELS / max(figure.get_size_inches())), facecolor="white", metadata=date
            )
    except OSError as error:
        raise OutputError(f"can't draw to {path}: {error.strerror}; name another file") from None
