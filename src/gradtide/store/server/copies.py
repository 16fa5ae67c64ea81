"""What a server says of the copies of its store: at the start, and when there are as many as wanted."""

from dataclasses import dataclass

from gradtide.store.wire.messages import Table, too_few_servers

__all__ = ["CopiesNotice"]


@dataclass(slots=True)
class CopiesNotice:
    """Says it once; later `gradtide status` does."""

    wanted: int
    _short: bool | None = None  # None: no table has come yet

    def look(self, table: Table | None) -> list[str]:
        """The lines to be said now that this is the table."""
        if table is None or self._short is False:
            return []
        first, short = self._short is None, table.short_of_copies
        self._short = bool(short)
        if not first:
            return [] if short else ["all shards have their copies now"]
        lines = []
        if self.wanted > table.replicas:
            lines.append(f"this store was begun with {table.replicas} replicas, and keeps as many")
        if short:
            why = too_few_servers(table) if len(table.servers) <= table.replicas else "they are being made"
            lines.append(f"{short} of {len(table.owners)} shards lack a copy: {why}")
        return lines
