"""Writes a figure to a file; an SVG has a dark form, which whoever shows it takes where the page is dark."""

import colorsys
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gradtide.errors import OutputError
from gradtide.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_path", "save"]

KINDS = (".svg", ".png", ".pdf")
PAPER, INK = 0.1, 0.93  # the lightness of what is white and of what is black, on a dark page
FILLS, LINES = 0.68, 0.58  # what is lighter than the one is filled, and gets dark; all else is at least as light
IDLE, FAINT = 0.42, 0.85  # as light are pale greys on a dark page, up to that
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
        if path.suffix.lower() == ".svg":
            path.write_text(_with_dark_form(path.read_text(encoding="utf-8")), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't draw to {path}: {error.strerror}; name another file") from None


def _with_dark_form(svg: str) -> str:
    """Every colour has a dark one beside it: what does not know the question shows the light ones."""
    used = dict.fromkeys(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", svg))
    rules = "".join(f'[style*="{what}: {colour}"]{{{what}:{_in_the_dark(colour)}!important}}' for what, colour in used)
    dark = f"@media (prefers-color-scheme: dark){{svg{{fill:{_in_the_dark('#000000')}}}{rules}}}"
    return svg.replace("</style>", f"{dark}</style>", 1)


def _in_the_dark(colour: str) -> str:
    """The same hue, as far from black as it was from white; lines a little farther.

    >>> _in_the_dark("#ffffff"), _in_the_dark("#000000")
    ('#17191c', '#ebedef')
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, strong = colorsys.rgb_to_hls(red, green, blue)
    if strong < 0.01 or light in (0.0, 1.0):  # greys get a little of the blue that dark pages have
        hue, strong = 0.6, 0.1
    pale = IDLE if red == green == blue and light < FAINT else PAPER
    dark = max(INK + (PAPER - INK) * light, pale if light > FILLS else LINES)
    parts = colorsys.hls_to_rgb(hue, dark, strong)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
