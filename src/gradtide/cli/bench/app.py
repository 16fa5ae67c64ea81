"""Puts the benchmarks' commands together."""

import typer

from gradtide.cli.bench.allreduce import allreduce
from gradtide.cli.bench.balance import balance
from gradtide.cli.bench.checkpoint import checkpoint
from gradtide.cli.bench.frugal import frugal
from gradtide.cli.bench.launch import launch
from gradtide.cli.bench.overlap import overlap
from gradtide.cli.bench.plan import plan
from gradtide.cli.bench.reading import reading
from gradtide.cli.bench.recovery import recovery
from gradtide.cli.bench.split import split
from gradtide.cli.bench.staleness import staleness
from gradtide.cli.bench.store import store
from gradtide.cli.bench.train import train
from gradtide.cli.bench.watching import dashboard, trace
from gradtide.cli.help import Commands

__all__ = ["bench"]

bench = typer.Typer(cls=Commands, help="Compare gradtide with its peers, interleaved in one run.", no_args_is_help=True)
for command in (
    overlap,
    frugal,
    balance,
    split,
    train,
    reading,
    allreduce,
    store,
    recovery,
    checkpoint,
    staleness,
    launch,
    plan,
    dashboard,
    trace,
):
    bench.command()(command)
