"""`gradtide chaos`: real servers and workers that are killed and stopped, or simulated ones, seed after seed."""

from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bench.common import telling
from gradtide.cli.table import print_table
from gradtide.errors import ConfigError, GradtideError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradtide.chaos.drill import Drill, DrillReport

__all__ = ["chaos"]


def chaos(
    kills: Annotated[int, typer.Option(help="How many faults")] = 20,
    kind: Annotated[
        str, typer.Option(help="Faults: kill, stop, coordinator, cut, stall, disk; several with commas")
    ] = "kill",
    servers: Annotated[int, typer.Option(help="Servers to start")] = 3,
    replicas: Annotated[int, typer.Option(help="Copies of everything, besides the first")] = 1,
    workers: Annotated[int, typer.Option(help="Workers that push")] = 4,
    pushes: Annotated[int, typer.Option(help="Go on until N pushes are acknowledged")] = 0,
    pause_s: Annotated[float, typer.Option("--pause", help="Seconds of calm before each fault")] = 0.3,
    compress: Annotated[str, typer.Option(help="Push compressed: onebit, or topk:0.05")] = "",
    script: Annotated[
        str,
        typer.Option(
            help="A command instead of workers; {address} (and {secret}, with cut, stall, disk) is the store's"
        ),
    ] = "",
    changes: Annotated[int, typer.Option(help="Instead of faults: servers come and go N times")] = 0,
    worker_changes: Annotated[int, typer.Option(help="Instead of faults: workers in rounds come and go N times")] = 0,
    machines: Annotated[
        bool,
        typer.Option(
            help="On four machines with three members of etcd and two coordinators; --kind has then server, "
            "coordinator, etcd, link, machine"
        ),
    ] = False,
    simulate: Annotated[bool, typer.Option(help="Simulate the store in one process, on a virtual clock")] = False,
    seeds: Annotated[int, typer.Option(help="With --simulate: how many scenarios")] = 20_000,
    first: Annotated[int, typer.Option(help="The first seed")] = 0,
    soak: Annotated[float, typer.Option(help="Train for N minutes with a kill every 20 s: what grows?")] = 0.0,
    overload: Annotated[float, typer.Option(help="Train for N minutes on an overloaded machine")] = 0.0,
) -> None:
    """Kill servers while workers push exact integers: every sum must be right in the end."""
    _check_numbers({
        "kills": (kills, 0), "servers": (servers, 1), "replicas": (replicas, 0), "pushes": (pushes, 0),
        "workers": (workers, 0 if script else 1), "pause": (pause_s, 0), "changes": (changes, 0),
        "worker-changes": (worker_changes, 0), "seeds": (seeds, 1), "first": (first, 0), "soak": (soak, 0),
        "overload": (overload, 0),
    })  # fmt: skip
    if simulate:
        _simulate(first, seeds)
        return
    if soak:
        _soak(soak)
    if overload:
        _overload(overload)
    if changes or worker_changes:
        _come_and_go(changes, worker_changes, servers, replicas, first)
    if soak or overload or changes or worker_changes:
        return
    import shlex

    from gradtide.chaos.drill import Drill, run_chaos

    kinds = tuple(part.strip() for part in kind.split(",") if part.strip())
    command = tuple(shlex.split(script))
    plan = Drill(kills, kinds, servers, replicas, workers, pause_s, pushes, first, compress, command)
    if machines:
        report = _on_machines(plan)
    else:
        with telling("starting") as tell:
            report = run_chaos(plan, tell)
    _tell(report)


def _check_numbers(asked: "Mapping[str, tuple[float, int]]") -> None:
    """Each option's value, and the least that makes sense."""
    for name, (value, least) in asked.items():
        if not value >= least:
            raise ConfigError(f"--{name} {value:g} makes no sense; give {least} or more")


def _on_machines(plan: "Drill") -> "DrillReport":
    from dataclasses import replace

    from gradtide.chaos.machine_drill import MACHINE_KINDS, run_machine_chaos

    if plan.pushes or plan.compress or plan.script:
        raise ConfigError("--pushes, --compress and --script don't go with --machines; leave them out")
    kinds = MACHINE_KINDS if plan.kinds == ("kill",) else plan.kinds
    with telling("starting") as tell:
        return run_machine_chaos(replace(plan, kinds=kinds), tell)


def _tell(report: "DrillReport") -> None:
    typer.echo(
        f"{report.faults} faults, {report.pushes} acknowledged pushes: lost {report.lost}, doubled {report.doubled}"
    )
    if report.back_s:
        p50, p99, most = report.quantile(0.5), report.quantile(0.99), max(report.back_s)
        typer.echo(f"fault to next acknowledged push: p50 {p50:.3f} s, p99 {p99:.3f} s, longest {most:.3f} s")
        longest = ", ".join(f"{kind} {seconds:.3f} s" for kind, seconds in sorted(report.longest_s.items()))
        typer.echo(f"the longest that a push had to wait: {longest}")
    if report.lost or report.doubled:
        raise GradtideError("the store broke its promise; its servers' output may say why")


def _come_and_go(changes: int, worker_changes: int, servers: int, replicas: int, seed: int) -> None:
    from gradtide.chaos.membership_churn import Coming, run_comings

    plan = Coming(changes, worker_changes, servers, servers + 2, replicas, seed=seed)
    with telling("starting") as tell:
        report = run_comings(plan, tell)
    typer.echo(
        f"{report.servers} comings and goings of servers, {report.workers} of workers, {report.steps} rounds: "
        f"lost {report.lost}, doubled {report.doubled}"
    )
    typer.echo(f"a step of those who stayed: median {report.step_s:.3f} s, longest {report.longest_s:.3f} s")
    if report.settled_s:
        typer.echo(f"until everything had moved: longest {max(report.settled_s):.2f} s")
    if report.lost or report.doubled:
        raise GradtideError("the store broke its promise; its servers' output may say why")


def _simulate(first: int, seeds: int) -> None:
    from gradtide.testing.elastic import run_elastic_seeds
    from gradtide.testing.simulate import run_seeds

    with telling("starting") as tell:
        for replicas in (False, True):
            broken = run_seeds(first, seeds, lambda seed: tell(f"seed {seed}"), replicas=replicas)
            if broken is not None:
                replay = f"--seed {broken.scenario.seed}{' --replicas' if replicas else ''}"
                raise GradtideError(f"a promise is broken; replay: python -m gradtide.testing.simulate {replay}")
        broken = run_elastic_seeds(first, -(-seeds // 10), lambda seed: tell(f"growing and shrinking, {seed}"))
        if broken is not None:
            replay = f"python -m gradtide.testing.elastic --seed {broken.scenario.seed}"
            raise GradtideError(f"a promise is broken; replay: {replay}")
    kinds = f"{seeds} without and {seeds} with replicas, {-(-seeds // 10)} that grow and shrink"
    typer.echo(f"scenarios from seed {first}, {kinds}: every promise held")


def _soak(minutes: float) -> None:
    from gradtide.chaos.soak import run_soak

    with telling("starting") as tell:
        found = run_soak(minutes, tell=tell)
    typer.echo(f"{found.minutes:g} minutes, {found.kills} kills, {found.steps} steps, {found.orphans} processes left")
    rows = []
    for growth in found.growths:
        sizes = (growth.third_bytes, growth.end_bytes, growth.grown_bytes)
        counts = (growth.third_descriptors, growth.end_descriptors)
        rows.append((growth.name, *(f"{size / (1 << 20):.1f}" for size in sizes), *counts))
    print_table(("process", "MiB at a third", "at the end", "grown by", "descriptors", "at the end"), rows)
    if found.complaints():
        raise GradtideError(f"the soak shows a leak: {', '.join(found.complaints())}")


def _overload(minutes: float) -> None:
    from gradtide.chaos.soak import run_overload

    with telling("starting") as tell:
        found = run_overload(minutes, tell=tell)
    evicted = found.servers_evicted + found.workers_evicted
    typer.echo(
        f"{found.minutes:g} minutes beside {found.busy} busy processes, {found.steps} steps: the table changed "
        f"{found.servers_evicted} times, the members of the rounds {found.workers_evicted} times"
    )
    if evicted:
        raise GradtideError("somebody who lived was thought dead: the machine is too slow for the lease")
