"""gradtide.init(): whoever asks torch.distributed for a process group later finds one over gradtide."""

from datetime import timedelta

import torch.distributed as dist

from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.timeouts import Timeouts, default_timeouts

__all__ = ["init"]


def init(timeouts: Timeouts | None = None) -> None:
    """Call it before `transformers.Trainer`, `accelerate.Accelerator` or DDP: they go over gradtide from here on.

    They choose a backend by the device, and use a process group that is there already. In a process that no launcher
    started there is no other worker, and nothing is done. Only CPU tensors travel over gradtide's process group.
    """
    if dist.is_initialized():
        backend = dist.get_backend()
        if backend != "gradtide":
            raise ConfigError(
                f"torch.distributed goes over {backend} already; call gradtide.init() first, before Trainer, "
                "TrainingArguments or Accelerator is made"
            )
        return
    around = read_environment()
    if around.launch is None:
        return
    if around.members:
        raise ConfigError(
            "a process group of torch.distributed can't go on without a rank, or with another; start without "
            "--min-workers and --max-workers, or train with gradtide.fit"
        )
    waiting = default_timeouts() if timeouts is None else timeouts
    dist.init_process_group("gradtide", timeout=timedelta(seconds=waiting.step_s))
