"""`gradtide serve`, `gradtide coordinator`, `gradtide secret`: the roles of a store on any machine, and their keys."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gradtide.cli.help import Commands
from gradtide.environment import read_environment

__all__ = ["InsecureNetwork", "SecretFile", "coordinator", "secret", "serve"]

SecretFile = Annotated[
    Path | None, typer.Option(help="The job's secret file, or a key derived from it; needed for TCP")
]
InsecureNetwork = Annotated[
    bool,
    typer.Option(help="Do not encrypt traffic to other machines: anybody on the path can read and change tensors"),
]
Where = Annotated[
    str,
    typer.Argument(
        help="Where to listen: unix:/folder/name, tcp:host:port (0: any port), tls:host:port (encrypted on one "
        "machine, too)"
    ),
]
Certificate = Annotated[Path | None, typer.Option(help="A certificate of your own in PEM; otherwise one is made")]
CertificateKey = Annotated[Path | None, typer.Option(help="Its private key, if that is in another file")]


def serve(
    address: Where,
    coordinator: Annotated[str, typer.Option(help="Where the coordinator listens; several with commas")],
    name: Annotated[
        str, typer.Option(help="Name of this server, kept over restarts  [default: machine and port]")
    ] = "",
    advertise: Annotated[str, typer.Option(help="Where others reach it, if not where it listens")] = "",
    servers: Annotated[int, typer.Option(help="How many servers the store begins with")] = 1,
    replicas: Annotated[int, typer.Option(help="How many copies of everything, besides the first")] = 0,
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    threads: Annotated[int, typer.Option(help="Threads of torch")] = 1,
    semiring: Annotated[list[str] | None, typer.Option(help="package.module:name of a reduction of your own")] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(help="A folder in which checkpoints may be written; may be repeated")
    ] = None,
    drain_s: Annotated[float, typer.Option("--drain", help="Seconds to hand over its shards at SIGTERM")] = 120.0,
) -> None:
    """Hold parameters for a store, until SIGTERM (which hands them over to other servers first) or Ctrl-C."""
    from gradtide.store.local.advertise import default_name
    from gradtide.store.local.roles import Role, run_role
    from gradtide.transport.authenticate import parse_address
    from gradtide.transport.keys import read_credentials

    role = Role(
        role="server", name=name or default_name(parse_address(address)), address=address,
        coordinator=coordinator, expected=servers,
        advertise=advertise, threads=threads, semirings=tuple(semiring or ()),
        replicas=replicas, drain_s=drain_s, events=read_environment().events,
        roots=tuple(checkpoints or ()) if checkpoints or not address.startswith("unix:") else None,
    )  # fmt: skip
    credentials = read_credentials(
        secret_file, insecure_network=insecure_network, certificate=certificate, certificate_key=certificate_key
    )
    run_role(role, credentials, lambda where: typer.echo(f"{role.name} listens at {where}"))


def coordinator(
    address: Where,
    secret_file: SecretFile = None,
    insecure_network: InsecureNetwork = False,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    lease_s: Annotated[
        float, typer.Option("--lease", help="Seconds of silence after which a peer counts as dead")
    ] = 2.0,
    worker_lease_s: Annotated[
        float, typer.Option("--worker-lease", help="Seconds that a worker may hang while its connection is open")
    ] = 60.0,
    journal: Annotated[
        str,
        typer.Option(
            help="Where its decisions are kept: a file, to be started again; or etcd://h1:2379,h2:2379,h3:2379/job "
            "(etcds:// with TLS), where others stand by"
        ),
    ] = "",
    advertise: Annotated[str, typer.Option(help="With etcd: where others reach it, if not where it listens")] = "",
    etcd_ca: Annotated[str, typer.Option(help="For etcds://: trusted certificates (CA), in PEM")] = "",
    etcd_certificate: Annotated[
        str, typer.Option("--etcd-cert", help="For etcds://: a client certificate, in PEM")
    ] = "",
    etcd_key: Annotated[str, typer.Option(help="For etcds://: the private key of --etcd-cert")] = "",
    restore: Annotated[str, typer.Option(help="A checkpoint that the store begins with; all servers must see it")] = "",
    checkpoints: Annotated[str, typer.Option(help="Folder of checkpoints to begin with again if servers die")] = "",
    after_loss: Annotated[
        str, typer.Option(help="If they die: empty, rewind (all shards go back), continue (lost ones do)")
    ] = "empty",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on with an old journal: all shards begin anew, as after a loss")
    ] = False,
    metrics: Annotated[
        str, typer.Option(help="Serve /metrics for Prometheus: a port of this machine, or HOST:PORT for others, too")
    ] = "",
) -> None:
    """Run a coordinator (who is alive, which server holds what), until SIGTERM or Ctrl-C."""
    from gradtide.store.coordinator.recovery import Recovering
    from gradtide.store.local.roles import Role, run_role
    from gradtide.transport.keys import read_credentials

    Recovering(restore, checkpoints, after_loss).check()  # type: ignore[arg-type]
    role = Role(
        role="coordinator", name="coordinator", address=address, lease_s=lease_s,
        journal=journal, advertise=advertise, etcd_ca=etcd_ca, etcd_certificate=etcd_certificate, etcd_key=etcd_key,
        restore=restore, checkpoints=checkpoints,
        after_loss=after_loss,  # type: ignore[arg-type]
        accept_loss=accept_loss, worker_lease_s=worker_lease_s, metrics=metrics,
        events=read_environment().events,
    )  # fmt: skip
    credentials = read_credentials(
        secret_file, insecure_network=insecure_network, certificate=certificate, certificate_key=certificate_key
    )
    if not journal:
        typer.echo("coordinator: it keeps no journal, so if it dies the store is lost; give --journal", err=True)
    run_role(role, credentials, lambda where: typer.echo(f"coordinator listens at {where}"))


class _PathOrCommand(Commands):
    """`gradtide secret job.secret` is `gradtide secret make job.secret`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["make", *args])


secret = typer.Typer(cls=_PathOrCommand, help="Make the keys of a job.", no_args_is_help=True)


@secret.command()
def make(path: Annotated[Path, typer.Argument(help="A new file")]) -> None:
    """Make a secret file for a job, its root key, that only you can read. `gradtide secret PATH` does the same."""
    from gradtide.transport.keys import make_secret_file

    make_secret_file(path)
    typer.echo(f"written: {path}; copy it to the machines of servers and coordinator, and keep it to yourself")


@secret.command()
def derive(
    path: Annotated[Path, typer.Argument(help="A new file")],
    role: Annotated[str, typer.Option(help="worker, or operator")],
    name: Annotated[str, typer.Option(help="Name of the holder; without one, all of that role share a key")] = "",
    secret_file: SecretFile = None,
) -> None:
    """Make the key of a worker or an operator; no other key can be derived from it."""
    from gradtide.transport.keys import derive_key_file

    derive_key_file(secret_file, path, role, name)
    typer.echo(f"written: {path}; copy it to where {role} {name or 'processes'} will run")
