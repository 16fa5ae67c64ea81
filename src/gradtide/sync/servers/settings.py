"""What a user says of the servers to train through."""

from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import ConfigError

__all__ = ["Servers"]


@dataclass(frozen=True, slots=True)
class Servers:
    """Train through servers, which hold the parameters: `sync=Servers("bsp")`.

    `mode` is "bsp" (all workers take each step together), "bounded:2" (a worker may be two steps ahead) or "async"
    (nobody waits). `address` is the store's; without it, the job's own servers (`gradtide run --servers 2`). Over TCP,
    `secret_file` names the file with this process's key. `insecure_network=True`: what goes to other machines is not
    encrypted. Raises ConfigError for another `mode`.

    On servers that have trained before, say `resume=True` to go on, or a new `name` to begin another training. `fit`
    names the checkpoint that it goes on from instead: then servers that hold no training are refused.
    """

    mode: str = "bsp"
    address: str | None = None
    secret_file: str | Path | None = None
    insecure_network: bool = False
    resume: bool | str = False
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.address, str | None):
            raise ConfigError(
                f"Servers: address={self.address!r} is no address; write unix:/path, tcp:host:port or tls:host:port"
            )
        self.consistency  # noqa: B018  that it is one

    @property
    def consistency(self) -> str:
        """The mode, as the store calls it."""
        name, _, delay = str(self.mode).partition(":")
        if self.mode in ("bsp", "async") or (name == "bounded" and delay.isdecimal()):
            return self.mode
        raise ConfigError(f"Servers({self.mode!r}) makes no sense; say 'bsp', 'async' or 'bounded:2'")
