"""What compression does not go with: said by name, before anything is changed."""

import torch

from gradtide.compress import AUTO, Compress
from gradtide.errors import ConfigError
from gradtide.sync.trained import Trained

__all__ = ["check_compression", "check_settings"]

_OVER_SERVERS = "servers", "local over servers"
_FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}


def check_settings(settings: Compress, goes: str) -> None:
    """What can be told without a model."""
    text, over_servers = f"compress={str(settings)!r}", goes in _OVER_SERVERS
    if over_servers and settings.codec == "powersgd":
        raise ConfigError(f"{text} adds up thin matrices between workers, which servers can't; leave Servers out")
    if over_servers and settings.after:
        raise ConfigError(f"{settings!r}: servers compress from the first round on; leave after= out")
    if goes not in ("auto", "servers", "local", "local over servers"):
        raise ConfigError(f"{text} goes with sync='auto' alone, where what is compressed has its own way; not {goes!r}")


def check_compression(settings: Compress, trained: Trained, goes: str, *, shared: bool | None) -> None:
    """goes: the way that was asked for: "servers", "local", "local over servers", "auto", or another name of it."""
    text, over_servers = f"compress={str(settings)!r}", goes in _OVER_SERVERS
    check_settings(settings, goes)
    if shared:
        raise ConfigError(f"with {text} each worker has parameters of its own; leave share_parameters= out")
    if settings.codec == "onebit" and not goes.startswith("local"):  # there it is the outer one that counts
        for optimizer in trained.optimizers:
            if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
                raise ConfigError(
                    f"{text} does not go with {type(optimizer).__name__}, whose second moments would be those of the "
                    "signs; use SGD, or int8"
                )
    wide = {torch.float32, torch.float64} if over_servers else _FLOATS
    for name, parameter in [] if settings.codec == AUTO else zip(trained.names, trained.parameters, strict=True):
        if parameter.dtype not in wide or parameter.device.type != "cpu":
            raise ConfigError(f"{text}: {name} is {parameter.dtype} on {parameter.device}; codecs take floats on cpu")
