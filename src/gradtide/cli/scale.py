"""`gradtide scale`: more or fewer servers for a store, or workers for a job, while they are at work."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["scale"]


def scale(
    address: Annotated[
        str,
        typer.Argument(
            help="The store's coordinator (unix:/path or tcp:host:port), or the name of a job: run-1a2b3c4d"
        ),
    ],
    servers: Annotated[int | None, typer.Option(help="How many servers the store should have")] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers the job should have")] = None,
    secret_file: Annotated[Path | None, typer.Option(help="The job's secret file; needed for TCP")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait until all has moved")] = 300.0,
) -> None:
    """Add servers to a store, or let some go when all they hold has moved; or the same for the workers of a job."""
    from gradtide.errors import ConfigError

    if (servers is None) == (workers is None):
        raise ConfigError("say what to scale: --servers 4 of a store, or --workers 4 of a job")
    if workers is not None:
        from gradtide.decrees import scale as scale_job

        typer.echo(scale_job(address, workers))
        return
    assert servers is not None
    _scale_store(address, servers, secret_file, timeout_s)


def _scale_store(address: str, servers: int, secret_file: Path | None, timeout_s: float) -> None:
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
