"""`gradtide serve`, `gradtide coordinator`, `gradtide secret`: the roles of the store, on any machine."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["coordinator", "secret", "serve"]

SecretFile = Annotated[Path | None, typer.Option(help="The job's secret (32 bytes, mode 0600); needed for TCP")]
Insecure = Annotated[bool, typer.Option(help="Listen beyond this machine although nothing is encrypted")]


def serve(
    address: Annotated[str, typer.Argument(help="Where to listen: unix:/folder/name or tcp:host:port (0: any port)")],
    coordinator: Annotated[str, typer.Option(help="Where the coordinator listens")],
    name: Annotated[str, typer.Option(help="This server's name, kept over restarts")] = "server-0",
    advertise: Annotated[str, typer.Option(help="Where clients reach it, if that is not where it listens")] = "",
    servers: Annotated[int, typer.Option(help="How many servers the store begins with")] = 1,
    replicas: Annotated[int, typer.Option(help="How many copies of everything, beside the first")] = 0,
    secret_file: SecretFile = None,
    insecure_network: Insecure = False,
    threads: Annotated[int, typer.Option(help="Threads of torch")] = 1,
    semiring: Annotated[list[str] | None, typer.Option(help="package.module:name of a reduction of your own")] = None,
    drain_s: Annotated[float, typer.Option("--drain", help="Seconds to hand over its shards at SIGTERM")] = 120.0,
) -> None:
    """Hold parameters for a store, until SIGTERM (which hands them over to other servers first) or Ctrl-C."""
    from gradtide.store.roles import Role, run_role

    role = Role(
        role="server", name=name, address=address, coordinator=coordinator, expected=servers,
        advertise=advertise, insecure_network=insecure_network, threads=threads, semirings=tuple(semiring or ()),
        replicas=replicas, drain_s=drain_s,
    )  # fmt: skip
    run_role(role, _read(secret_file), lambda where: typer.echo(f"{name} listens at {where}"))


def coordinator(
    address: Annotated[str, typer.Argument(help="Where to listen: unix:/folder/name or tcp:host:port (0: any port)")],
    secret_file: SecretFile = None,
    insecure_network: Insecure = False,
    lease_s: Annotated[float, typer.Option("--lease", help="Seconds of silence after which a peer is out")] = 2.0,
    journal: Annotated[Path | None, typer.Option(help="Where it keeps what it decided, to be started again")] = None,
    restore: Annotated[str, typer.Option(help="A checkpoint that the store begins with; all servers must see it")] = "",
    checkpoints: Annotated[str, typer.Option(help="Where the last checkpoint is found if servers die")] = "",
    after_loss: Annotated[
        str, typer.Option(help="Then: empty, rewind (all go back), continue (the lost do)")
    ] = "empty",
) -> None:
    """Say who is alive and which server holds what, until SIGTERM or Ctrl-C."""
    from gradtide.store.recovering import Recovering
    from gradtide.store.roles import Role, run_role

    Recovering(restore, checkpoints, after_loss).check()  # type: ignore[arg-type]
    role = Role(
        role="coordinator",
        name="coordinator",
        address=address,
        lease_s=lease_s,
        insecure_network=insecure_network,
        journal=str(journal) if journal is not None else "",
        restore=restore,
        checkpoints=checkpoints,
        after_loss=after_loss,  # type: ignore[arg-type]
    )
    run_role(role, _read(secret_file), lambda where: typer.echo(f"coordinator listens at {where}"))


def secret(path: Annotated[Path, typer.Argument(help="A file that is not there yet")]) -> None:
    """Make a secret file for a job: 32 random bytes that only you can read."""
    from gradtide.transport.authenticate import make_secret_file

    make_secret_file(path)
    typer.echo(f"written: {path}; copy it to every machine of the job, and keep it to yourself")


def _read(secret_file: Path | None) -> bytes:
    from gradtide.transport.authenticate import read_secret_file

    return read_secret_file(secret_file) if secret_file is not None else b""
