"""What `gradtide train --split` can't mean, before anything is loaded or started."""

from pathlib import Path

from gradtide.errors import ConfigError, DataError

__all__ = ["check_split_options"]


def check_split_options(split: str | None, copies: dict[str, tuple[object, object]], workers_devices: str) -> None:
    """`copies`: options about copies of a whole model, each with its default. `workers_devices`: those of each worker,
    "" where there are no workers."""
    if split is None:
        return
    for option, (value, default) in copies.items():
        if value != default:
            said = option if value is True else f"{option} {value}"
            raise ConfigError(
                f"{said} is for copies of a whole model, and --split makes parts of one; leave one of them out"
            )
    if workers_devices not in ("", "1") and ("," in workers_devices or workers_devices.isdecimal()):
        raise ConfigError(
            f"with --split every worker is a device: leave --devices {workers_devices} out, and say how many --workers"
        )
    if split.endswith(".json") and not Path(split).is_file():
        raise DataError(f"no layout can be read from {split}; save one with gradtide split --json {split}")
