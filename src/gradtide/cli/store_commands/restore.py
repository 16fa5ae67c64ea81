"""`gradtide restore PATH`: a store on this machine that begins with a checkpoint."""

import signal
from typing import Annotated

import typer

__all__ = ["restore"]


def restore(
    path: Annotated[str, typer.Argument(help="A checkpoint's folder, or one with several: then the newest")],
    servers: Annotated[int, typer.Option(help="How many servers, however many wrote the checkpoint")] = 1,
    replicas: Annotated[int, typer.Option(help="How many copies of everything, besides the first")] = 0,
    checkpoints: Annotated[str, typer.Option(help="Folder of checkpoints to begin with again if servers die")] = "",
    after_loss: Annotated[
        str, typer.Option(help="If they die: empty, rewind (all shards go back), continue (lost ones do)")
    ] = "empty",
) -> None:
    """Start a store with the values, optimizer state and duplicate filter of a checkpoint, until SIGTERM or Ctrl-C."""
    from gradtide.store.local.servers import local_servers

    with local_servers(
        servers, replicas=replicas, restore=path, checkpoints=checkpoints or None,
        after_loss=after_loss,  # type: ignore[arg-type]
    ) as started:  # fmt: skip
        from gradtide.store.client.store import connect

        with connect(started.address) as store:
            count = len(store.keys())
        typer.echo(f"{count} keys on {servers} servers at {started.address}")
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # only now: what was started before would inherit it
        signal.sigwait(ends)
