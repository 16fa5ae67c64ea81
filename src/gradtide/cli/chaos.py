"""`gradtide chaos`: the store on a virtual clock and a bad network, seed after seed."""

from typing import Annotated

import typer

__all__ = ["chaos"]


def chaos(
    simulate: Annotated[bool, typer.Option(help="In one process, on a virtual clock (the only way so far)")] = True,
    seeds: Annotated[int, typer.Option(help="How many scenarios")] = 20_000,
    first: Annotated[int, typer.Option(help="The first seed")] = 0,
) -> None:
    """Run simulated scenarios until a promise of the store breaks; says how to replay the seed."""
    from rich.console import Console

    from gradtide.errors import ConfigError, GradtideError
    from gradtide.testing.simulate import run_seeds

    if not simulate:
        raise ConfigError("only simulated chaos is there; leave --no-simulate out")
    with Console(stderr=True).status("starting") as status:
        broken = run_seeds(first, seeds, lambda seed: status.update(f"seed {seed}"))
    if broken is not None:
        seed = broken.scenario.seed
        raise GradtideError(f"seed {seed} breaks a promise; replay: python -m gradtide.testing.simulate --seed {seed}")
    typer.echo(f"{seeds} scenarios from seed {first}: every promise held")
