"""What a user says of the servers to train through."""

from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import ConfigError

__all__ = ["Servers"]


@dataclass(frozen=True, slots=True)
class Servers:
    """`sync=Servers("bsp")`, "bounded:2" or "async"; at the job's own servers, or at `address`.

    On servers that have trained before, say `resume=True` to go on, or a new `name` to begin another training. `fit`
    names the checkpoint that it goes on from instead: then servers that hold no training are refused.
    """

    mode: str = "bsp"
    address: str | None = None
    secret_file: str | Path | None = None
    insecure_network: bool = False  # True: what goes to other machines is not encrypted
    resume: bool | str = False
    name: str = ""

    @property
    def consistency(self) -> str:
        """As the store calls it."""
        name, _, delay = self.mode.partition(":")
        if self.mode in ("bsp", "async") or (name == "bounded" and delay.isdecimal()):
            return self.mode
        raise ConfigError(f"Servers({self.mode!r}) makes no sense; say 'bsp', 'async' or 'bounded:2'")
