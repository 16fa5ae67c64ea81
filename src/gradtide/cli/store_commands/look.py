"""`gradtide store ls|get|stat ADDRESS`: looks inside a running store."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.help import Commands
from gradtide.cli.store_commands.serve import InsecureNetwork, SecretFile
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.store.client.catalogue import Info
    from gradtide.store.client.store import Store

__all__ = ["app"]

app = typer.Typer(cls=Commands, help="Look inside a running store.", no_args_is_help=True)

Address = Annotated[
    str, typer.Argument(help="The coordinator's address: unix:/path or tcp:host:port; several with commas")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


@app.command()
def ls(
    address: Address,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this")] = "",
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    as_json: AsJson = False,
) -> None:
    """List the keys."""
    with _connect(address, secret_file, insecure_network) as store:
        infos = [store.info(key) for key in store.keys(prefix)]
    if as_json:
        print(json.dumps([_plain(info) for info in infos]))
        return
    headings = ("key", "shape", "dtype", "update", "consistency", "version", "servers", "bytes")
    print_table(headings, [list(_plain(info).values()) for info in infos])


@app.command()
def get(
    address: Address,
    key: Annotated[str, typer.Argument(help="Which key")],
    rows: Annotated[str, typer.Option(help="Only these rows, as in 0:100")] = "",
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
) -> None:
    """Show the value of a key."""
    from gradtide.errors import ConfigError

    first, colon, last = rows.partition(":")
    if rows and not (colon and all(part == "" or part.lstrip("-").isdecimal() for part in (first, last))):
        raise ConfigError(f"--rows {rows!r} makes no sense; write FROM:TO, as in 0:100")
    chosen = slice(int(first) if first else None, int(last) if last else None) if rows else None
    with _connect(address, secret_file, insecure_network) as store:
        print(store.pull(key, rows=chosen))


@app.command()
def stat(
    address: Address,
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    as_json: AsJson = False,
) -> None:
    """Show which server holds how much."""
    with _connect(address, secret_file, insecure_network) as store:
        servers = store.servers()
    if as_json:
        print(json.dumps(servers))
        return
    print_table(("server", "address", "shards", "keys", "bytes"), [list(server.values()) for server in servers])


def _connect(address: str, secret_file: Path | None, insecure_network: bool) -> "Store":
    from gradtide.store.client.store import connect

    return connect(address, secret_file=secret_file, insecure_network=insecure_network)


def _plain(info: "Info") -> dict[str, Any]:
    arguments = ", ".join(f"{name}={value}" for name, value in info.update.arguments.items())
    return {
        "key": info.key,
        "shape": list(info.shape),
        "dtype": info.dtype,
        "update": f"{info.update.name}({arguments})" if arguments else info.update.name,
        "consistency": info.consistency,
        "version": f"{info.version.epoch}.{info.version.sequence}",
        "servers": ", ".join(info.servers),
        "bytes": info.size_bytes,
    }
