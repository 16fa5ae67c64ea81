"""Writes the figures of docs/figures/*.json, as `gradtide bench … --output` leaves them, into README.md and docs/*.md.

A page has two marks, between which a table is written; sentences have no figures, but say what the table shows:

    <!-- figures: train-workers-mlp -->
    <!-- end -->

docs/figures/NAME.table, beside the results, has the file that the table is of, its headings and the form of a line:

    train-workers-mlp bold gradtide, shared parameters
    | | samples/s | x never synchronised |
    | {name} | {per_s:,.0f} | {ratio:.2f} |

The table has a line for each result, or, with `by`, for each group of results that agree in some fields. Without the
first line all lines are written once, and a figure is named with its file:

    | over DDP | {train-lenet[gradtide, 2 devices].per_s / train-lenet[DDP over Gloo, 2 processes].per_s:.1f} |

`file[this][that].field` is the field of those results in docs/figures/file.json that hold both "this" and "that"; in a
table `[this].field` looks among the line's own results. `min` or `max` before it takes the least or most of several.
`file/part` is another part of that file than its results. A form is Python's, after a unit (`us`, `ms`, `MB`, `GB`, or
`pt` for hundredths).
"""

import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNITS = {"us": 1e6, "ms": 1e3, "MB": 1e-6, "GB": 1e-9, "pt": 100}
EXTREMES = {"min": min, "max": max}
FIELD = re.compile(r"\{((?:\[[^\]]*\]|[^{}:\[])+)(?::([^{}]*))?\}")
TERM = re.compile(r"(?:(min|max) )?(?:([\w/-]*)((?:\[[^\]]*\])*)\.)?(\w+)")
TABLE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WHICH = re.compile(r"([\w/-]*)((?:\[[^\]]*\])*)(?: by (\w+(?:, \w+)*))?(?: bold (.+))?")

Result = dict[str, Any]


class WrongFigure(Exception):
    """A page names a figure that is not there, or that is not one."""


class Figures:
    """The results of every file in a folder, and how pages show them."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, list[Result]] = {}
        for path in folder.glob("*.json"):
            self._files.update(_parts(path.stem, json.loads(path.read_text())))
        self._tables = {path.stem: path.read_text().strip() for path in folder.glob("*.table")}

    def write_into(self, page: str) -> str:
        if not page.count("<!-- figures:") == page.count("<!-- end -->") == len(TABLE.findall(page)):
            raise WrongFigure("a table begins with <!-- figures: NAME --> and ends with <!-- end -->")
        return TABLE.sub(lambda found: f"{found[1]}\n{self._table(found[2])}\n\n{found[3]}", page)

    def _table(self, name: str) -> str:
        if name not in self._tables:
            raise WrongFigure(f"docs/figures has no {name}.table")
        lines = self._tables[name].split("\n")
        file, keys, by, bold = _match(WHICH, "" if lines[0].startswith("|") else lines.pop(0))
        head, *forms = lines
        written = [head, "|---" * (head.count("|") - 1) + "|"]
        if not file:
            return "\n".join(written + [self._fill(form, []) for form in forms])
        for group in _groups(self._select(file, keys, []), by):
            marks = "**" if bold and any(bold in row.values() for row in group) else ""
            cells = [self._fill(cell.strip(), group) for cell in forms[0].strip("|").split("|")]
            written.append("".join(f"| {marks}{cell}{marks} " if cell else "| " for cell in cells) + "|")
        return "\n".join(written)

    def _fill(self, form: str, here: list[Result]) -> str:
        """Empty if nothing of what it shows was measured."""
        shown = [self._shown(found[1], found[2] or "", here) for found in FIELD.finditer(form)]
        return FIELD.sub(lambda found: shown.pop(0), form) if any(shown) or not shown else ""

    def _shown(self, terms: str, form: str, here: list[Result]) -> str:
        value, *divisor = [self._value(term, here) for term in terms.split(" / ")]
        if value is None or (divisor and not divisor[0]):
            return ""  # was not measured
        unit = form[:2] if form[:2] in UNITS else ""
        value = value / divisor[0] if divisor else value
        return format(value * UNITS[unit] if unit else value, form.removeprefix(unit))

    def _value(self, term: str, here: list[Result]) -> Any:
        which, file, keys, field = _match(TERM, term)
        values = [row[field] for row in self._select(file, keys, here) if field in row]
        if which and values:
            values = [EXTREMES[which](value for value in values if value is not None)]
        if not values or values != values[:1] * len(values):
            raise WrongFigure(f"{term} should be one figure, and is {values or 'none'}")
        return values[0]

    def _select(self, file: str | None, keys: str | None, here: list[Result]) -> list[Result]:
        if file and file not in self._files:
            raise WrongFigure(f"docs/figures has no {file}")
        wanted = {*re.findall(r"\[([^\]]*)\]", keys or "")}
        return [row for row in (self._files[file] if file else here) if wanted <= {*map(str, row.values())}]


def _match(pattern: re.Pattern[str], text: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(text)
    if not found:
        raise WrongFigure(f"{text!r} is not understood; docs/render_figures.py says what can be written")
    return found.groups()


def _groups(rows: list[Result], by: str | None) -> list[list[Result]]:
    groups: dict[Any, list[Result]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(row[key] for key in by.split(", ")) if by else number, []).append(row)
    return list(groups.values())


def _parts(name: str, content: Result) -> Iterator[tuple[str, list[Result]]]:
    """A file's results, each with what else the file says by its name; and the other parts of the file."""
    for part, value in content.items():
        rows = value if isinstance(value, list) else [value]
        if part != "results" and all(isinstance(row, dict) for row in rows):
            yield f"{name}/{part}", _even(rows)
    facts = [*content.items(), *content.get("settings", {}).items()]
    by_name = [(key, value) for key, value in facts if isinstance(value, dict)]
    said = [
        {key: value[row["name"]] for key, value in by_name if row.get("name") in value} for row in content["results"]
    ]
    yield name, _even([more | row for more, row in zip(said, content["results"], strict=True)])


def _even(rows: list[Result]) -> list[Result]:
    """All have the same fields; what was not measured is None."""
    flat = [dict(_flat(row)) for row in rows]
    fields = [field for row in flat for field in row]
    return [dict.fromkeys(fields) | row for row in flat]


def _flat(row: Result, before: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> dict(_flat({"case": {"workers": 2}, "seconds": [3, 1, 2]}))
    {'case_workers': 2, 'seconds_median': 2, 'seconds_min': 1, 'seconds_max': 3}
    """
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}_")
        elif isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
            yield from _flat({"median": median(value), "min": min(value), "max": max(value)}, f"{before}{key}_")
        else:
            yield before + key, value


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def update(root: Path, write: bool) -> list[str]:
    """The lines of pages that differ from the figures, and what they should be; with `write`, they are from now on."""
    figures, found = Figures(root / "docs" / "figures"), []
    for page in pages(root):
        before = page.read_text()
        try:
            after = figures.write_into(before)
        except WrongFigure as error:
            raise WrongFigure(f"{page.relative_to(root)}: {error}") from None
        lines = difflib.ndiff(before.split("\n"), after.split("\n"))
        found += [f"{page.relative_to(root)}: {line}" for line in lines if line[0] in "-+"]
        if write and after != before:
            page.write_text(after)
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("gradtide: scripts/figures takes --check or nothing", file=sys.stderr)
        return 2
    try:
        changed = update(ROOT, write=not arguments)
    except WrongFigure as error:
        print(f"gradtide: {error}", file=sys.stderr)
        return 2
    print("\n".join(changed) or "gradtide: pages show what docs/figures has")
    return int(bool(arguments and changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
