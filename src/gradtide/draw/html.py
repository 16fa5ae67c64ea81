"""What a notebook shows of a history or a plan: a table in the page's own colours, and a picture beside it."""

import base64
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from gradtide.extras import is_there

__all__ = ["html_picture", "html_table"]


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", notes: Iterable[str] = ()) -> str:
    """Numbers stand at the right; a narrow page scrolls the table alone. `notes` are said below it."""
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    others = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{first}</tr></thead><tbody>{others}</tbody></table>"
    return f'{above}<div style="overflow-x:auto">{table}</div>{below}'


def html_picture(draw: Callable[[Path], None], what: str) -> str:
    """What `draw` writes to an SVG file, as a picture within the page; nothing where nothing can be drawn."""
    if not is_there("plot"):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw(path)
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(what)}" style="max-width:100%;height:auto" src="data:image/svg+xml;base64,{data}">'
