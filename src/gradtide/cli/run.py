"""`gradtide run`: starts a script on several workers of this machine, and servers if it wants some."""

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gradtide.launch import Target

__all__ = ["run"]

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file, or with -m a module")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="For the script")] = None,
    workers: Annotated[int, typer.Option(help="Processes that run the script")] = 1,
    servers: Annotated[int, typer.Option(help="Processes that hold parameters, for a job over a store")] = 0,
    replicas: Annotated[int, typer.Option(help="Copies of every parameter on other servers; needs more servers")] = 0,
    min_workers: Annotated[
        int | None, typer.Option(help="Go on while so many workers live  [default: all]", show_default=False)
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option(help="Let gradtide scale add workers up to so many", show_default=False)
    ] = None,
    max_restarts: Annotated[int, typer.Option(help="Start dead workers again, so often in all")] = 0,
    threads: Annotated[
        int | None,
        typer.Option(help="Of each worker  [default: OMP_NUM_THREADS, or an even share]", show_default=False),
    ] = None,
    grace_s: Annotated[float, typer.Option("--grace", help="Seconds between a signal and SIGKILL")] = 1.5,
    step_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--step-timeout",
            help="Seconds a step waits for a worker that lives  [default: 1800]",
            show_default=False,
        ),
    ] = None,
    preload: Annotated[bool, typer.Option(help="Load torch once, for all workers, before they start")] = True,
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as with python -m")] = False,
) -> None:
    """Run a script on several workers of this machine: gradtide run --workers 4 script.py --lr 0.1"""
    from gradtide.errors import ConfigError
    from gradtide.launch import Launcher, Spec, Target, check_spec, check_target

    target = Target(script, tuple(arguments or ()), is_module)
    spec = Spec(
        target=target, workers=workers, min_workers=min_workers, max_workers=max_workers, max_restarts=max_restarts,
        threads=threads, grace_s=grace_s, step_s=step_timeout_s,
        preload=_to_load(target) if preload else "",
    )  # fmt: skip
    check_spec(spec)
    if servers < 0:
        raise ConfigError(f"--servers {servers} makes no sense; give 0 or more")
    if replicas and not 0 < replicas < servers:
        raise ConfigError(f"--replicas {replicas} needs --servers {max(2, replicas + 1)} or more")
    try:
        check_target(target, [os.getcwd(), *sys.path])
    except SyntaxError as error:
        typer.echo("".join(traceback.format_exception_only(error)) + "gradtide: nothing was started", err=True)
        raise typer.Exit(1) from None
    with contextlib.ExitStack() as stack:
        launcher = stack.enter_context(Launcher(spec))  # loads torch while servers, if any, do the same
        variables = {}
        if servers:
            from gradtide.store.local.servers import local_servers

            store = stack.enter_context(local_servers(servers, replicas=replicas))
            variables["GRADTIDE_STORE"] = store.address
        code = launcher.run(variables)
    raise typer.Exit(code)


def _to_load(target: "Target") -> str:
    """For a script that trains, what its first optimizer would import in every worker."""
    from gradtide.launch.target import names_in

    trains = names_in(target) & {"DataParallel", "DistributedDataParallel", "fit", "optim"}
    return "gradtide.parallel.preload" if trains else "gradtide.collective.groups.preload"
