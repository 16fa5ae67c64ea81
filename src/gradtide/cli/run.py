"""`gradtide run`: starts a script on several workers of this machine, and servers if it wants some."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradtide.cli.watch.dashboard import check_dashboard, dashboard_beside
from gradtide.cli.watch.trace import TRACED, check_trace_folder, tell_trace

if TYPE_CHECKING:
    from gradtide.launch import Spec, Target

__all__ = ["run"]

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file, or with -m a module")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="For the script")] = None,
    workers: Annotated[int, typer.Option(help="Processes that run the script")] = 1,
    servers: Annotated[int, typer.Option(help="Processes that hold parameters, for a job over a store")] = 0,
    replicas: Annotated[int, typer.Option(help="Copies of every parameter on other servers; needs more servers")] = 0,
    min_workers: Annotated[
        int | None, typer.Option(help="Go on while N workers are alive  [default: all]", show_default=False)
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option(help="Let gradtide scale add workers, up to N", show_default=False)
    ] = None,
    max_restarts: Annotated[int, typer.Option(help="Start dead workers again, at most N times in all")] = 0,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of each worker  [default: OMP_NUM_THREADS, or an even share]", show_default=False),
    ] = None,
    grace_s: Annotated[float, typer.Option("--grace", help="Seconds between a signal and SIGKILL")] = 1.5,
    step_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--step-timeout",
            help="Seconds that a step waits for a living worker  [default: 1800]",
            show_default=False,
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the job live in a browser; prints the link")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write all events to a folder, and at the end trace.json", show_default=False)
    ] = None,
    preload: Annotated[bool, typer.Option(help="Load torch once, for all workers, before they start")] = True,
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as with python -m")] = False,
    engine: Annotated[str, typer.Option(help="local (this machine), or ray (a running Ray cluster)")] = "local",
    address: Annotated[
        str,
        typer.Option(help="Ray's address, HOST:PORT  [default: RAY_ADDRESS, or the cluster here]", show_default=False),
    ] = "",
    workers_per_node: Annotated[
        int | None,
        typer.Option(help="With --engine ray: workers on a node  [default: as many as fit]", show_default=False),
    ] = None,
    gpus_per_worker: Annotated[int, typer.Option(help="With --engine ray: GPUs that Ray gives each worker")] = 0,
    checkpoints: Annotated[
        str, typer.Option(help="With --engine ray: servers' checkpoints, in a folder that all nodes see")
    ] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="With --engine ray: servers begin with the newest checkpoint")
    ] = False,
) -> None:
    """Run a script on several workers, here or on a Ray cluster: gradtide run --workers 4 script.py --lr 0.1"""
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
    of_ray = {
        "--address": address, "--workers-per-node": workers_per_node, "--gpus-per-worker": gpus_per_worker,
        "--checkpoints": checkpoints, "--resume": resume,
    }  # fmt: skip
    _check_engine(engine, of_ray)
    if dashboard:
        check_dashboard(engine)
    if trace is not None:
        check_trace_folder(trace, engine)
    try:
        check_target(target, [os.getcwd(), *sys.path])
    except SyntaxError as error:
        typer.echo("".join(traceback.format_exception_only(error)) + "gradtide: nothing was started", err=True)
        raise typer.Exit(1) from None
    _say_if_misplaced(target)
    if engine == "ray":
        _run_on_ray(spec, (servers, replicas), of_ray)
    from gradtide.observe.run_facts import note_end

    with contextlib.ExitStack() as stack:
        launcher = stack.enter_context(Launcher(spec))  # loads torch while servers, if any, do the same
        variables = {}
        if servers:
            from gradtide.store.local.servers import local_servers

            store = stack.enter_context(local_servers(servers, replicas=replicas, events=trace))
            variables["GRADTIDE_STORE"] = store.address
        folder: Path | None = None
        if dashboard or trace is not None:
            title = " ".join([script, *(arguments or ())])
            folder = stack.enter_context(_events_folder(variables, title, spec, servers, trace))
        if dashboard and folder is not None:
            stack.enter_context(dashboard_beside(True, folder, variables.get("GRADTIDE_STORE", "")))
        code = launcher.run(variables)
        if folder is not None:
            note_end(folder, code)
        if servers and not code:
            _say_if_unused(store.address, script)
    if trace is not None:
        tell_trace(trace)
    raise typer.Exit(code)


def _say_if_misplaced(target: "Target") -> None:
    from gradtide.launch.target import misplaced

    ours = ("--workers", "--servers", "--replicas", "--min-workers", "--max-workers", "--max-restarts", "--engine")
    if option := misplaced(target, ours):
        hint = f"{option} stands behind {target.name} and goes to the script; options of gradtide run stand before it"
        typer.echo(f"gradtide: {hint}", err=True)


def _say_if_unused(address: str, script: str) -> None:
    from gradtide.errors import CommunicationError
    from gradtide.store.local.status import ask_status, holds_nothing

    with contextlib.suppress(CommunicationError):
        if holds_nothing(ask_status(address)):
            how = (
                'fit(..., sync=gradtide.Servers("bsp")), DataParallel(..., gradtide.Servers("bsp")), or '
                'gradtide.connect(os.environ["GRADTIDE_STORE"])'
            )
            typer.echo(f"gradtide: {script} put nothing on the servers; it uses them by {how}", err=True)


@contextlib.contextmanager
def _events_folder(
    variables: dict[str, str], title: str, spec: "Spec", servers: int, trace: Path | None
) -> Iterator[Path]:
    """Where workers write their events down, for as long as the job runs; for a trace, to stay."""
    from gradtide.observe.run_facts import RunFacts, write_facts
    from gradtide.processes.scratch import ScratchFolder

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(ScratchFolder()).path) / "events" if trace is None else trace.absolute()
        if trace is not None:
            variables |= TRACED
        write_facts(folder, RunFacts(title, spec.workers, servers, variables.get("GRADTIDE_STORE", "")))
        variables["GRADTIDE_EVENTS"] = str(folder)
        yield folder


def _check_engine(engine: str, of_ray: dict[str, Any]) -> None:
    from gradtide.errors import ConfigError

    if engine not in ("local", "ray"):
        raise ConfigError(f"there is no engine {engine!r}; choose local or ray")
    given = next((name for name, value in of_ray.items() if value), None)
    if engine == "local" and given is not None:
        raise ConfigError(f"{given} is for --engine ray; give both or neither")
    per_node, gpus = of_ray["--workers-per-node"], of_ray["--gpus-per-worker"]
    if (per_node is not None and per_node < 1) or gpus < 0:
        raise ConfigError("--workers-per-node is 1 or more, and --gpus-per-worker 0 or more")
    if of_ray["--resume"] and not of_ray["--checkpoints"]:
        raise ConfigError("--resume goes on with the newest checkpoint in a folder; name it: --checkpoints FOLDER")


def _run_on_ray(spec: "Spec", servers: tuple[int, int], of_ray: dict[str, Any]) -> NoReturn:
    from gradtide.ray.engine import RayWishes, run_on_ray
    from gradtide.ray.placing import JobSize

    per_node, gpus = of_ray["--workers-per-node"], of_ray["--gpus-per-worker"]
    size = JobSize(spec.workers, *servers, per_node, spec.threads or 1, gpus)
    checkpoints = os.path.abspath(of_ray["--checkpoints"]) if of_ray["--checkpoints"] else ""
    raise typer.Exit(run_on_ray(spec, RayWishes(size, of_ray["--address"], checkpoints, of_ray["--resume"])))


def _to_load(target: "Target") -> str:
    """For a script that trains, what its first optimizer would import in every worker."""
    from gradtide.launch.target import names_in

    trains = names_in(target) & {"DataParallel", "DistributedDataParallel", "fit", "optim"}
    return "gradtide.parallel.preload" if trains else "gradtide.collective.groups.preload"
