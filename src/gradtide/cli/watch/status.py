"""`gradtide status ADDRESS`: who is alive, who holds what, what is behind, and what is wrong, in one screen."""

from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.store_commands.serve import InsecureNetwork, SecretFile
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.store.local.status import Status

__all__ = ["status"]

SERVER_HEADINGS = ("server", "state", "heard", "primary of", "in sync for", "joining", "bytes", "replicas behind")


def status(
    address: Annotated[
        str, typer.Argument(help="The coordinator's address: unix:/path or tcp:host:port; several with commas")
    ],
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
) -> None:
    """Show the state of a store, and what is wrong when a job hangs. The exit code is 1 if anything is wrong, or less
    safe than was asked for."""
    from gradtide.store.local.status import ask_status, complaints, notes
    from gradtide.transport.keys import read_credentials

    found = ask_status(address, read_credentials(secret_file, insecure_network=insecure_network))
    told, table = found.coordinator, found.coordinator.table
    epoch = table.epoch if table is not None else 0
    typer.echo(f"coordinator at {address}: term {told.term}, epoch {epoch}, lease {told.lease_s:g} s")
    print_table(SERVER_HEADINGS, _servers(found))
    workers = [peer for peer in told.peers if peer.role == "worker"]
    for peer in workers:
        typer.echo(f"worker {peer.worker}: {'alive' if peer.alive else 'gone'}, heard {peer.silent_s:.1f} s ago")
    clients = sum(peer.role == "client" for peer in told.peers)
    typer.echo(f"{len(workers)} workers, {clients} other clients")
    wrong = complaints(found)
    for line in wrong:
        typer.echo(f"! {line}")
    for line in notes(found):
        typer.echo(f"- {line}")
    if wrong:
        raise typer.Exit(1)
    typer.echo("all is well")


def _servers(found: "Status") -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
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
        heard, size_bytes = f"{peer.silent_s:.1f} s ago", f"{health.size_bytes:,}" if health else "?"
        owned = table.owners.count(i)
        rows.append((entry.name, state, heard, owned, following, joining, size_bytes, behind or "none"))
    return rows
