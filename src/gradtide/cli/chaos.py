"""`gradtide chaos`: real servers and workers that are killed and stopped, or simulated ones, seed after seed."""

from typing import Annotated

import typer

__all__ = ["chaos"]


def chaos(
    kills: Annotated[int, typer.Option(help="How many faults")] = 20,
    kind: Annotated[str, typer.Option(help="Faults to draw from: kill, stop, coordinator (comma-separated)")] = "kill",
    servers: Annotated[int, typer.Option(help="Servers to start")] = 3,
    replicas: Annotated[int, typer.Option(help="Copies of everything, beside the first")] = 1,
    workers: Annotated[int, typer.Option(help="Workers that push")] = 4,
    pushes: Annotated[int, typer.Option(help="Go on until so many are acknowledged")] = 0,
    pause_s: Annotated[float, typer.Option("--pause", help="Seconds of calm before each fault")] = 0.3,
    script: Annotated[str, typer.Option(help="A command instead of workers; {address} becomes the store's")] = "",
    simulate: Annotated[bool, typer.Option(help="In one process, on a virtual clock")] = False,
    seeds: Annotated[int, typer.Option(help="Simulated: how many scenarios")] = 20_000,
    first: Annotated[int, typer.Option(help="The first seed")] = 0,
) -> None:
    """Kill servers while workers push exact integers: every sum must be right in the end."""
    if simulate:
        _simulate(first, seeds)
        return
    import shlex

    from rich.console import Console

    from gradtide.errors import GradtideError
    from gradtide.testing.chaos import Plan, run_chaos

    kinds = tuple(part.strip() for part in kind.split(",") if part.strip())
    plan = Plan(kills, kinds, servers, replicas, workers, pause_s, pushes, first, tuple(shlex.split(script)))
    with Console(stderr=True).status("starting") as status:
        report = run_chaos(plan, status.update)
    typer.echo(
        f"{report.faults} faults, {report.pushes} acknowledged pushes: lost {report.lost}, doubled {report.doubled}"
    )
    if report.back_s:
        p50, p99, most = report.quantile(0.5), report.quantile(0.99), max(report.back_s)
        typer.echo(f"fault to next acknowledged push: p50 {p50:.3f} s, p99 {p99:.3f} s, longest {most:.3f} s")
    if report.lost or report.doubled:
        raise GradtideError("the store broke its promise; its servers' output may say why")


def _simulate(first: int, seeds: int) -> None:
    from rich.console import Console

    from gradtide.errors import GradtideError
    from gradtide.testing.simulate import run_seeds

    with Console(stderr=True).status("starting") as status:
        for replicas in (False, True):
            broken = run_seeds(first, seeds, lambda seed: status.update(f"seed {seed}"), replicas=replicas)
            if broken is not None:
                replay = f"--seed {broken.scenario.seed}{' --replicas' if replicas else ''}"
                raise GradtideError(f"a promise is broken; replay: python -m gradtide.testing.simulate {replay}")
    typer.echo(f"{seeds} scenarios without and {seeds} with replicas from seed {first}: every promise held")
