"""What the servers of a run hold in the end: the primaries' values, and whether every replica has the same."""

from collections.abc import Iterator
from typing import Any

from gradtide.store.shard.shard import Shard
from gradtide.store.wire.messages import Table
from gradtide.testing.simulator.actors import World
from gradtide.testing.simulator.checkpoints import final_of
from gradtide.testing.simulator.history import Final, Violation

__all__ = ["finals", "is_whole", "kept_records", "lost_shards"]


def finals(world: World) -> dict[tuple[str, int], Final]:
    """Every block at its primary; not those of shards that had to begin anew."""
    table = world.table
    found = {}
    for actor in world.hosts.values():
        for number, shard in actor.host.shards.items():
            if table is None or (table.lost and table.lost[number]) or not _leads(table, actor.host.name, number):
                continue
            for place, block in shard.blocks.items():
                copies = {name: actor.host.arithmetic.copy(value) for name, value in block.state.beside().items()}
                value = actor.host.arithmetic.copy(block.state.value())
                found[place] = final_of(block.spec, value, block.closed, dict(block.counted), copies)
    return found


def _leads(table: Table, name: str, shard: int) -> bool:
    return table.servers[table.owners[shard]].name == name


def is_whole(world: World, replicas: int) -> bool:
    """Are all replicas in sync, and the same as their primaries, and has everybody gone who wanted to?"""
    table = world.table
    if table is None or any(len(backups) < replicas for backups in table.backups):
        return False
    hosts = [actor.host for actor in world.hosts.values() if not actor.host.dismissed]
    if any(host.draining for host in hosts):
        return False
    if any(host.epoch != table.epoch for host in hosts):
        return False
    for host in hosts:
        for number, shard in host.shards.items():
            if any(not _same(shard, copy) for copy in _copies(world, table, number)):
                return False
    return True


def _copies(world: World, table: Table, number: int) -> Iterator[Shard[Any] | None]:
    for i in table.backups[number] if table.backups else ():
        yield world.hosts[table.servers[i].name].host.replication.replicas.get(number)


def _same(shard: Shard[Any], copy: Shard[Any] | None) -> bool:
    if copy is None:
        return not shard.blocks
    return shard.position == copy.position and _content(shard) == _content(copy)


def _content(shard: Shard[Any]) -> object:
    digest = shard.arithmetic.digest
    return [
        (
            place,
            digest(block.state.value()),
            block.closed,
            block.counted,
            block.changes,
            block.state.arguments(),
            {name: digest(value) for name, value in block.state.beside().items()},
        )
        for place, block in sorted(shard.blocks.items())
    ]


def lost_shards(world: World) -> list[Violation]:
    """Within the budget of its replicas a store loses nothing."""
    table = world.table
    gone = [number for number, epoch in enumerate(table.lost) if epoch] if table is not None else []
    lost = [number for number in gone if number not in world.history.struck_off]
    return [Violation("nothing lost", f"{len(lost)} shards had to begin anew, as shard {lost[0]}")] if lost else []


def kept_records(world: World) -> list[Violation]:
    """What a server has been told to forget it has forgotten."""
    return [
        Violation("forgotten", f"{actor.host.name} remembers {client}, of whom it knows that it is gone")
        for actor in world.hosts.values()
        if actor.alive
        for shard in actor.host.shards.values()
        for client, record in shard.filter.records.items()
        if actor.host.absent.includes(record.incarnation)
    ]
