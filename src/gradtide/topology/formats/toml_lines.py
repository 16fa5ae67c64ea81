"""Where in a TOML text a field is: tomllib gives lines for broken syntax only."""

import re

__all__ = ["TomlLines"]

HEADER = re.compile(r"\s*\[\[?\s*[\"']?([\w-]+)[\"']?\s*\]\]?")
KEY = re.compile(r"\s*[\"']?([^\s\"'=\[\]#]+)[\"']?\s*=")


class TomlLines:
    """Finds the line of a field by counting [[table]] headers above it."""

    def __init__(self, text: str) -> None:
        self._fields: dict[tuple[str, int, str], int] = {}
        self._headers: dict[tuple[str, int], int] = {}
        self._last = 1
        self._scan(text)

    def find(self, table: str, index: int, field: str) -> int:
        """The field's own line, else its table's, else that of the table's name at the top, else the last."""
        own = self._fields.get((table, index, field))
        header = self._headers.get((table, index))
        inline = self._fields.get(("topology", 0, table))  # link = [{…}, {…}]
        anywhere = self._headers.get((field, 0)) if table == "topology" else None
        return own or header or inline or anywhere or self._last

    def _scan(self, text: str) -> None:
        table, index, quote = "topology", 0, ""
        counts: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            self._last = number if line.strip() else self._last
            inside, quote = bool(quote), _open_quote(line, quote)
            if inside:
                continue
            if header := HEADER.match(line):
                table = header[1]
                index = counts.get(table, 0)
                counts[table] = index + 1
                self._headers[table, index] = number
            elif key := KEY.match(line):
                self._fields.setdefault((table, index, key[1]), number)


def _open_quote(line: str, quote: str) -> str:
    """The triple quote that is still open after this line, if one is."""
    for mark in re.findall(r'"""|\'\'\'', line):
        quote = "" if quote == mark else quote or mark
    return quote
