"""`gradtide scale ADDRESS --servers 4`: more or fewer servers for a store that is at work."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["scale"]


def scale(
    address: Annotated[str, typer.Argument(help="The coordinator's address: unix:/path or tcp:host:port")],
    servers: Annotated[int, typer.Option(help="How many servers the store should have")],
    secret_file: Annotated[Path | None, typer.Option(help="The job's secret file; needed for TCP")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait until all has moved")] = 300.0,
) -> None:
    """Add servers to a store or let some go while clients work; returns when everything has moved."""
    from rich.console import Console

    from gradtide.store.scaling import scale as scale_store
    from gradtide.transport.authenticate import read_secret_file

    secret = read_secret_file(secret_file) if secret_file is not None else b""
    with Console(stderr=True).status("asking") as status:
        done = scale_store(address, servers, secret, timeout_s=timeout_s, tell=status.update)
    for what, names in (("started", done.started), ("let go", done.dismissed)):
        if names:
            typer.echo(f"{what}: {', '.join(names)}")
    typer.echo(f"{len(done.servers)} servers: {', '.join(done.servers)} (after {done.seconds:.1f} s)")
