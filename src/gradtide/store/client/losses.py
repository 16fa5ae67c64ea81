"""What a client has seen of each shard, and what of that is gone: more servers died than there were replicas. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradtide.store.client.operations import Operation
from gradtide.store.wire.messages import Refused, Source, Table, Version

__all__ = ["Losses"]


@dataclass(slots=True)
class Losses:
    """Whoever has seen what is gone must be told."""

    seen: dict[int, Version] = field(default_factory=dict)  # shard -> the latest version read or written
    rolled_back: dict[int, Version] = field(default_factory=dict)  # shard -> what was seen of it before it was lost
    rewound: Source | None = None  # all shards went back to this, and the user has not taken note of it yet

    def saw(self, shard: int, version: Version) -> None:
        """It was read or written."""
        seen = self.seen.get(shard)
        if seen is None or seen < version:
            self.seen[shard] = version

    def learn(self, table: Table) -> dict[int, Version]:
        """What is gone of what was seen, by shard."""
        for shard, epoch in enumerate(table.lost if any(table.lost) else ()):
            seen = self.seen.get(shard)
            if seen is not None and seen.epoch < epoch:
                self.rolled_back[shard] = seen
                del self.seen[shard]
                source = table.source_of(shard)
                self.rewound = source if source is not None and source.rewind else self.rewound
        return dict(self.rolled_back)

    def refusal(self, operation: Operation[Any], table: Table, gone: Mapping[int, Version]) -> Refused | None:
        """Operations on keys of which something is gone fail and say so, once; when all shards went back together, so
        does every operation, until the user has taken note of it."""
        if operation.kind == "keys":
            return None
        if self.rewound is not None:
            return Refused(operation.sequence, -1, "rolled_back", _went_back(self.rewound))
        shards = {part.shard for part in operation.layout.parts}.intersection(gone)
        if not shards or operation.kind == "init":
            return None
        names = {piece.key for part in operation.layout.parts if part.shard in shards for piece in part.pieces}
        seen = max(gone[shard] for shard in shards)
        source = table.source_of(min(shards))
        for shard in shards:
            self.rolled_back.pop(shard, None)
        where = "nothing" if source is None else f"the checkpoint {source.folder}"
        what = "init again, from a checkpoint if there is one" if source is None else "pull, and go on"
        text = (
            f"{', '.join(sorted(names))} went back from version {seen.epoch}.{seen.sequence} to {where}: more servers "
            f"died than there were replicas; {what}"
        )
        return Refused(operation.sequence, -1, "rolled_back", text)

    def take_note(self) -> Source | None:
        """The user knows that all shards went back; to what, or None if they did not."""
        source, self.rewound = self.rewound, None
        if source is not None:
            self.rolled_back.clear()
        return source


def _went_back(source: Source) -> str:
    return (
        f"all shards went back to the checkpoint {source.folder} of round {source.round}: more servers died than there "
        f"were replicas; call store.rewind() and go on with step {source.round + 1}"
    )
