"""What `gradtide train --every` can't mean, before anything is loaded."""

from gradtide.errors import ConfigError

__all__ = ["check_local"]


def check_local(
    every: int | None, after: int, workers: int | None, beside: tuple[str | None, int], *, keeps: bool
) -> None:
    """`beside`: what --sync says, and the servers. keeps: checkpoints."""
    if every is None:
        if after:
            raise ConfigError("--after says when workers begin to step by themselves; say how long, as in --every 50")
        return
    if every < 1 or after < 0:
        wrong = f"--every {every}" if every < 1 else f"--after {after}"
        raise ConfigError(f"{wrong} makes no sense; workers meet every 1 step or more, after 0 or more")
    if workers is None:
        raise ConfigError("--every is for several workers, who step by themselves; say how many, as in --workers 2")
    sync, servers = beside
    if not servers and sync not in (None, "auto"):
        raise ConfigError(f"with --every workers meet over collectives of their own; leave --sync {sync} out")
    if servers and keeps:
        raise ConfigError("no checkpoints are kept of local steps over servers; leave --servers or checkpoints out")
