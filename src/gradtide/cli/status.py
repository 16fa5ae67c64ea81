"""`gradtide status ADDRESS`: who is alive, who holds what, what is behind, and what is wrong, in one screen."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from gradtide.store.status import Status

__all__ = ["status"]


def status(
    address: Annotated[str, typer.Argument(help="The coordinator's address: unix:/path or tcp:host:port")],
    secret_file: Annotated[Path | None, typer.Option(help="The job's secret file; needed for TCP")] = None,
) -> None:
    """Say how a store is, and what is wrong when a job hangs."""
    from rich.console import Console

    from gradtide.store.status import ask_status, complaints
    from gradtide.transport.authenticate import read_secret_file

    found = ask_status(address, read_secret_file(secret_file) if secret_file is not None else b"")
    told, table = found.coordinator, found.coordinator.table
    epoch = table.epoch if table is not None else 0
    typer.echo(f"coordinator at {address}: term {told.term}, epoch {epoch}, lease {told.lease_s:g} s")
    Console().print(_servers(found))
    workers = [peer for peer in told.peers if peer.role == "worker"]
    for peer in workers:
        typer.echo(f"worker {peer.worker}: {'alive' if peer.alive else 'gone'}, heard {peer.silent_s:.1f} s ago")
    clients = sum(peer.role == "client" for peer in told.peers)
    typer.echo(f"{len(workers)} workers, {clients} other clients")
    wrong = complaints(found)
    for line in wrong:
        typer.echo(f"! {line}")
    if not wrong:
        typer.echo("all is well")


def _servers(found: "Status") -> "Table":
    from rich.table import Table

    shown = Table("server", "state", "heard", "primary of", "in sync for", "joining", "bytes", "replicas behind")
    table = found.coordinator.table
    peers = {peer.name: peer for peer in found.coordinator.peers}
    for i, entry in enumerate(table.servers if table is not None else ()):
        peer, health = peers[entry.name], found.servers[entry.name]
        state = "dead" if not peer.alive else "silent" if health is None else "lapsed" if health.lapsed else "alive"
        assert table is not None
        state = "leaving" if state == "alive" and i in table.leaving else state
        following = sum(i in backups for backups in table.backups)
        joining = sum(i in names for names in table.joining)
        behind = ", ".join(f"{name} {lag}" for name, lag in sorted(health.lag.items()) if lag) if health else "?"
        shown.add_row(
            entry.name, state, f"{peer.silent_s:.1f} s ago", str(table.owners.count(i)), str(following), str(joining),
            str(health.size_bytes) if health else "?", behind or "none",
        )  # fmt: skip
    return shown
