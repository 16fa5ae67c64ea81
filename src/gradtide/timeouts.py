"""How long to wait for others before saying who is late."""

from dataclasses import dataclass

from gradtide.environment import read_environment
from gradtide.errors import ConfigError

__all__ = ["Timeouts", "check_timeouts", "default_timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a living process: it may validate, save, or read its data.

    All are seconds above 0; others raise ConfigError. `step_s`: for whatever a step needs of others, and for others to
    begin. `notice_s`: then a line says who is waited for. `connect_s`: for an address to answer. `join_s`: for a store
    to have servers. `lost_s`: for a store's server that can't be reached to come back, or to be replaced. `resend_s`:
    the first wait for a server's answer; it doubles up to eight times that.

    A process that died is noticed by its socket at once, a host or wire that died within seconds, whatever is set here.
    """

    step_s: float = 1800.0
    notice_s: float = 30.0
    connect_s: float = 5.0
    join_s: float = 60.0
    lost_s: float = 60.0
    resend_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigError(f"Timeouts({name}={seconds!r}) makes no sense; give more than 0 seconds")


def check_timeouts(who: str, timeouts: object) -> None:
    if not isinstance(timeouts, Timeouts | None):
        raise ConfigError(f"{who}: timeouts={timeouts!r} makes no sense; say timeouts=gradtide.Timeouts(step_s=60)")


def default_timeouts() -> Timeouts:
    """What this process's launcher was told (`gradtide run --step-timeout`), or the defaults."""
    step_s = read_environment().step_s
    return Timeouts() if step_s is None else Timeouts(step_s=step_s)
