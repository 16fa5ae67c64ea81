"""`gradtide scale`: more or fewer servers for a store, or workers for a job, while they are at work."""

from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bench.common import telling
from gradtide.cli.store_commands.serve import InsecureNetwork, SecretFile

if TYPE_CHECKING:
    from gradtide.transport.keys import Credentials

__all__ = ["scale"]


def scale(
    address: Annotated[
        str,
        typer.Argument(
            help="The store's coordinator (unix:/path or tcp:host:port; several with commas), or the name of a job: "
            "run-1a2b3c4d"
        ),
    ],
    servers: Annotated[int | None, typer.Option(help="How many servers the store should have")] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers the job should have")] = None,
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait until all shards have moved")] = 300.0,
) -> None:
    """Add servers to a store, or remove some once their shards have moved; or do so for the workers of a job."""
    from gradtide.errors import ConfigError

    if (servers is None) == (workers is None):
        raise ConfigError("say what to scale: --servers 4 of a store, or --workers 4 of a job")
    if workers is not None:
        from gradtide.processes.job_protocol import scale as scale_job

        typer.echo(scale_job(address, workers))
        return
    assert servers is not None
    from gradtide.transport.keys import read_credentials

    _scale_store(address, servers, read_credentials(secret_file, insecure_network=insecure_network), timeout_s)


def _scale_store(address: str, servers: int, credentials: "Credentials", timeout_s: float) -> None:
    from gradtide.store.local.scaling import scale as scale_store

    with telling("asking") as tell:
        done = scale_store(address, servers, credentials, timeout_s=timeout_s, tell=tell)
    for what, names in (("started", done.started), ("let go", done.dismissed)):
        if names:
            typer.echo(f"{what}: {', '.join(names)}")
    typer.echo(f"{len(done.servers)} servers: {', '.join(done.servers)} (after {done.seconds:.1f} s)")
