"""`gradtide store ls|get|stat ADDRESS`: looks inside a running store."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gradtide.store.client import Store
    from gradtide.store.summary import Info

__all__ = ["app"]

app = typer.Typer(help="Look inside a running store.", no_args_is_help=True)

Address = Annotated[str, typer.Argument(help="The coordinator's address: unix:/path or tcp:host:port")]
SecretFile = Annotated[Path | None, typer.Option(help="The job's secret file; needed for TCP")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


@app.command()
def ls(
    address: Address,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so")] = "",
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """List the keys."""
    with _connect(address, secret_file) as store:
        infos = [store.info(key) for key in store.keys(prefix)]
    if as_json:
        print(json.dumps([_plain(info) for info in infos]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "shape", "dtype", "update", "consistency", "version", "servers", "bytes")
    for info in infos:
        table.add_row(*(str(value) for value in _plain(info).values()))
    Console().print(table)


@app.command()
def get(
    address: Address,
    key: Annotated[str, typer.Argument(help="Which key")],
    rows: Annotated[str, typer.Option(help="Only these rows, as in 0:100")] = "",
    secret_file: SecretFile = None,
) -> None:
    """Show the value of a key."""
    from gradtide.errors import ConfigError

    first, colon, last = rows.partition(":")
    if rows and not (colon and all(part == "" or part.lstrip("-").isdecimal() for part in (first, last))):
        raise ConfigError(f"--rows {rows!r} makes no sense; write FROM:TO, as in 0:100")
    chosen = slice(int(first) if first else None, int(last) if last else None) if rows else None
    with _connect(address, secret_file) as store:
        print(store.pull(key, rows=chosen))


@app.command()
def stat(address: Address, secret_file: SecretFile = None, as_json: AsJson = False) -> None:
    """Show which server holds how much."""
    with _connect(address, secret_file) as store:
        servers = store.servers()
    if as_json:
        print(json.dumps(servers))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("server", "address", "shards", "keys", "bytes")
    for server in servers:
        table.add_row(*(str(value) for value in server.values()))
    Console().print(table)


def _connect(address: str, secret_file: Path | None) -> "Store":
    from gradtide.store.client import connect

    return connect(address, secret_file=secret_file)


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
