"""What `gradtide plan --every` and `--speeds` say of a whole step: how long it takes with and without."""

from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from typing import Any

from gradtide.cli.table import BOLD, styled, table_lines
from gradtide.errors import ConfigError
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.plan import Plan
from gradtide.schedule.predict.less_often import StepForecast, forecast_step
from gradtide.schedule.predict.unequal_speeds import SpeedForecast, forecast_speeds
from gradtide.topology.units import parse_seconds

__all__ = ["StepAsked", "as_data", "check_step", "step_text"]


@dataclass(frozen=True, slots=True)
class StepAsked:
    """The options that are about a step."""

    every: int | None
    compute_s: float | None  # of a worker of speed 1, with an equal part
    speeds: tuple[float, ...]
    batch: int | None
    overlap: bool

    @classmethod
    def of(cls, asked: Namespace) -> "StepAsked | None":
        """None where none of them was given."""
        for given, name, needed in (
            (asked.batch, "--batch", asked.speeds),
            (asked.no_overlap, "--no-overlap", asked.every),
            (asked.compute, "--compute", asked.every or asked.speeds),
        ):
            if given and not needed:
                partner = "--every or --speeds" if name == "--compute" else "--every"
                raise ConfigError(f"{name} goes with {'--speeds' if name == '--batch' else partner}")
        if not asked.every and not asked.speeds:
            return None
        if asked.every and not asked.compute:
            raise ConfigError("--every needs --compute, the time of a step's forward and backward, as 30ms")
        compute_s = parse_seconds(asked.compute) if asked.compute else None
        batch, every = _whole(asked.batch, "--batch", "samples"), _whole(asked.every, "--every", "steps")
        return cls(every, compute_s, _speeds(asked.speeds or ""), batch, not asked.no_overlap)


def _whole(text: str | None, option: str, what: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"{option} is a number of {what}, not {text}")
    return int(text)


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"speeds are two numbers or more, as 1,1,0.3; not {text}") from None


def check_step(step: StepAsked, asked: Namespace) -> None:
    """What does not go together, before anything is planned."""
    if step.every is not None and not asked.topology:
        raise ConfigError("--every needs a topology and --size: what synchronising takes is planned")
    if asked.sizes:
        raise ConfigError("--every and --speeds go with one size; give --size, not --sizes")
    if asked.collective not in (None, "all_reduce"):
        raise ConfigError(f"--every and --speeds are of all_reduce, not of {asked.collective}")


def _forecasts(step: StepAsked, found: Plan | None) -> tuple[StepForecast | None, SpeedForecast | None]:
    speeds = forecast_speeds(step.speeds, step.batch) if step.speeds else None
    if found is not None and speeds is not None and len(found.request.devices) != len(step.speeds):
        raise ConfigError(f"{len(found.request.devices)} devices but {len(step.speeds)} speeds; give one for each")
    if step.every is None or found is None:
        return None, speeds
    assert step.compute_s is not None
    compute_s = step.compute_s * (speeds.even if speeds else 1.0)  # the slowest is waited for
    best = found.best
    return forecast_step(compute_s, best.seconds, best.wire_bytes, step.every, overlap=step.overlap), speeds


def as_data(step: StepAsked, found: Plan | None) -> dict[str, Any]:
    """What --json adds."""
    local, speeds = _forecasts(step, found)
    data: dict[str, Any] = {}
    if local is not None:
        data["local"] = asdict(local) | {"share": local.share, "is_worth_it": local.is_worth_it}
    if speeds is not None:
        times = {"even": speeds.even, "balanced": speeds.balanced}
        if step.compute_s is not None:
            times = {f"{name}_s": value * step.compute_s for name, value in times.items()}
        data["balance"] = {"speeds": speeds.speeds, "shares": speeds.shares, "gain": speeds.gain, **times}
    return data


def step_text(step: StepAsked, found: Plan | None) -> str:
    local, speeds = _forecasts(step, found)
    blocks = []
    if local is not None:
        blocks.append(_local_text(local, step))
    if speeds is not None:
        blocks.append(_speeds_text(speeds, step, found))
    return "\n\n".join(blocks)


def _local_text(local: StepForecast, step: StepAsked) -> str:
    how = "gradients leave in backward" if step.overlap else "gradients leave after backward"
    together = (f"taken together ({how})", local.together_s, local.together_bytes)
    rows = [together, (f"met every {local.every} steps", local.local_s, local.local_bytes), ("never", local.alone_s, 0)]
    cells = [(name, short_seconds(s), short_size(float(f"{size:.3g}"))) for name, s, size in rows]
    head, *lines = table_lines(("steps", "a step", "on the wire"), cells)
    return "\n".join([styled(BOLD, head), *lines, "", f"{local.explain()}."])


def _speeds_text(speeds: SpeedForecast, step: StepAsked, found: Plan | None) -> str:
    def time(value: float) -> str:
        return f"{value:.3f}" if step.compute_s is None else short_seconds(value * step.compute_s)

    whole = step.batch is not None
    parts = ", ".join(f"{share:.0f}" if whole else f"{100 * share:.1f} %" for share in speeds.shares)
    rows = [
        ("equal parts", time(speeds.even), "all wait for the slowest"),
        ("parts by speed", time(speeds.balanced), parts),
    ]
    unit = "computing" if step.compute_s is not None else "computing, of what speed 1 takes"
    head, *lines = table_lines(("parts of a batch", unit, "parts"), rows)
    text = f"parts by speed compute {speeds.gain:.2f} times as fast as equal ones"
    if step.every is not None and found is not None:
        balanced = replace(step, speeds=(), compute_s=(step.compute_s or 0.0) * speeds.balanced)
        local, _ = _forecasts(balanced, found)
        assert local is not None
        text += (
            f"; with both, a step takes {short_seconds(local.local_s)} when met every {local.every} steps, and "
            f"{short_seconds(local.together_s)} when taken together"
        )
    if speeds.gain < 1.02:
        text = f"parts by speed are not worth it: {text}"
    return "\n".join([styled(BOLD, head), *lines, "", f"{text}."])
