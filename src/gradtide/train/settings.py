"""What `gradtide train` is to train, and on what: plain data that a worker can be sent; and what a run can't be."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.train.models.own import find_own, is_own, make_own

if TYPE_CHECKING:
    from gradtide.sync import Job, Local, Servers
    from gradtide.train.keeper import Checkpoints

__all__ = [
    "Settings",
    "check_batch",
    "check_batch_norm",
    "check_checkpoints",
    "check_local",
    "check_options",
    "check_precision",
    "check_split",
    "check_validation",
    "check_window",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the options say."""

    model: str
    data: str
    data_dir: str | None  # where Fashion-MNIST's files are, if that was said
    fit: dict[str, Any]  # what fit takes besides the model, the data and the devices
    devices: str = "1"  # of each worker
    sync: str = "auto"  # how workers synchronise; over servers, how strictly
    every: int = 0  # so many steps each worker takes by itself before all meet; 0: all of them are taken together
    after: int = 0  # so many steps that are taken together
    folder: str = ""  # where workers write down what happens
    checkpoints: dict[str, Any] | None = None  # the fields of keeper.Checkpoints

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        return cls(**json.loads(text))

    def keeping(self) -> "Checkpoints | None":
        """What fit is to do about checkpoints."""
        from gradtide.train.keeper import Checkpoints

        return None if self.checkpoints is None else Checkpoints(**self.checkpoints)

    @property
    def over_servers(self) -> bool:
        return self.sync.partition(":")[0] in ("bsp", "bounded", "async")

    def title(self, workers: int, servers: int) -> str:
        """What such a run is called: `2 workers x 2 devices, 2 servers, bsp`."""
        from gradtide.parallel import find_devices

        devices = len(find_devices(self.devices))
        parts = ["1 worker" if workers == 1 else f"{workers} workers"]
        if devices > 1:
            parts[0] += f" x {devices} devices"
        if servers:
            parts.append("1 server" if servers == 1 else f"{servers} servers")
        if self.every:
            parts.append(f"met every {self.every} steps" + (f" after {self.after}" if self.after else ""))
        how = [] if self.every and not servers else [self.sync]
        return ", ".join([*parts, *how, *([self.fit["compress"]] if self.fit.get("compress") else [])])

    def how(self) -> "str | Servers | Local":
        """What fit is to take as `sync`."""
        from gradtide.sync import Local, Servers

        servers = Servers(self.sync) if self.over_servers else None
        if self.every:
            return Local(self.every, after=self.after, over=servers)
        return servers or self.sync

    def check(self, workers: int) -> None:
        """Raises what a worker would, before any is started; data that is not here yet is fetched once, for all."""
        from gradtide.parallel import find_devices
        from gradtide.parallel.devices.step import check_strategy
        from gradtide.train.models import check_model
        from gradtide.train.steering.rates import Rates, check_rate

        devices, options = len(find_devices(self.devices)), self.fit
        self.how()
        if options.get("balance") and self.sync == "async":
            raise ConfigError("--balance is for workers that wait for each other; in async nobody does: leave it out")
        check_model(self.model)
        check_options(options["epochs"], options["scale_batch"], options["lr_scaling"])
        growth = devices * workers if options["scale_batch"] else 1
        check_rate(options["lr"])
        Rates(options["lr_scaling"], growth, options["warmup_epochs"])
        check_strategy(options["strategy"], devices)
        if options["batch_size"] < 1:
            raise ConfigError(f"batch size {options['batch_size']}; it must be 1 or more")
        accumulate = options["accumulate"]
        if accumulate < 1:
            raise ConfigError(f"--accumulate {accumulate} makes no sense; a step takes 1 batch or more")
        self._check_compression()
        check_batch(options["batch_size"] * growth * accumulate, devices, workers)
        self.arguments()
        found = None if is_own(self.data) else self._find_data()
        if is_own(self.data):
            find_own(self.data, "--data")
        elif self.every:
            check_window(self.every, -(-_samples(found) // (options["batch_size"] * growth * accumulate)))

    def _check_compression(self) -> None:
        compress = self.fit.get("compress")
        if compress is None:
            return
        from gradtide.compress import as_compress
        from gradtide.sync.compressed.refuse import check_settings

        found = as_compress(compress)
        if found is not None:
            goes = "servers" if self.over_servers else "local" if self.every else self.sync
            check_settings(found, goes)

    def arguments(self) -> dict[str, Any]:
        """What fit takes besides the model, the data and the devices; functions of the user's are found by name."""
        found = dict(self.fit)
        for name in ("loss", "schedule", "optimizer"):
            if isinstance(found.get(name), str) and is_own(found[name]):
                found[name] = find_own(found[name], f"--{name}")
        if "callbacks" in found:
            found["callbacks"] = [find_own(text, "--callback") for text in found["callbacks"]]
        if "metrics" in found:
            found["metrics"] = {text.partition(":")[2]: find_own(text, "--metric") for text in found["metrics"]}
        return found

    def load(self) -> tuple[Any, Any]:
        """(train, test), each (inputs, targets), or what else fit takes; of the user's own, test may be None."""
        if is_own(self.data):
            return _pair(make_own(self.data, "--data"))
        found = self._find_data()
        if found is None:
            from gradtide.train.digits import load_digits

            return load_digits()
        from gradtide.train.datasets.fashion_mnist import load_fashion_mnist

        return load_fashion_mnist(found)

    def _find_data(self) -> Path | None:
        """Where Fashion-MNIST is; None for the digits, which are embedded."""
        if self.data == "digits":
            if self.data_dir is not None:
                raise ConfigError("--data-dir goes with --data fashion-mnist; the digits are embedded")
            return None
        if self.data == "fashion-mnist":
            from gradtide.train.datasets.fashion_mnist import fashion_mnist_folder

            return fashion_mnist_folder(None if self.data_dir is None else Path(self.data_dir), read_environment())
        raise ConfigError(f"unknown data {self.data!r}; choose digits or fashion-mnist, or my_module:make_data")


def _pair(data: Any) -> tuple[Any, Any]:
    """(train, validation) of what a user's function gave."""
    if isinstance(data, dict) and "train" in data and set(data) <= {"train", "validation"}:
        return data["train"], data.get("validation")
    if isinstance(data, tuple) and len(data) == 2 and not _is_batch(data):
        return data
    return data, None


def _is_batch(data: Any) -> bool:
    """Inputs and targets, and not training and validation data."""
    import numpy as np
    import torch

    return isinstance(data, tuple) and isinstance(data[1], torch.Tensor | np.ndarray)


def _samples(folder: Path | None) -> int:
    """Of the training data: of Fashion-MNIST in a folder, or of the digits."""
    from gradtide.train.datasets.fashion_mnist import FILES
    from gradtide.train.digits import TRAIN_SAMPLES

    return TRAIN_SAMPLES if folder is None else next(iter(FILES.values()))[0][0]


# --- what a run can't be: said before anything begins ---


def check_options(epochs: int, scale_batch: bool, lr_scaling: str) -> None:
    if lr_scaling != "none" and not scale_batch:
        raise ConfigError("lr_scaling follows the batch, which only scale_batch lets grow; give both or neither")
    if epochs < 1:
        raise ConfigError(f"{epochs} epochs; it must be 1 or more")


def check_validation(validation: Any, test_data: Any, metrics: Any) -> Any:
    """The validation data, by either name."""
    if validation is not None and test_data is not None:
        raise ConfigError("validation= and test_data= are two names of the same; give one of them")
    found = test_data if validation is None else validation
    if metrics and found is None:
        raise ConfigError("metrics= are measured on the validation data; give validation=")
    return found


def check_batch_norm(batch_norm: str, sync_batch_norm: bool, accumulate: int, balance: bool) -> bool:
    """Whether batch normalisation is over all devices and workers."""
    if batch_norm not in ("own", "shared"):
        raise ConfigError(
            f"batch_norm={batch_norm!r}; say 'own' (each device's part of a batch) or 'shared' (all of it)"
        )
    shared = batch_norm == "shared" or sync_batch_norm
    if shared and accumulate != 1 and balance:
        raise ConfigError(
            "batch_norm='shared' with accumulate= cuts every batch evenly, and balance= by speed; leave one of them out"
        )
    return shared


def check_precision(precision: str | None) -> Any:
    """What forward is to be computed in."""
    import torch

    if precision in (None, "fp32"):
        return None
    if precision != "bf16":
        raise ConfigError(f"precision={precision!r}; say 'bf16', or leave it out")
    return torch.bfloat16


def check_batch(batch_size: int | None, devices: int, workers: int = 1) -> None:
    """Every device of every worker gets a sample."""
    if batch_size is None or batch_size >= devices * workers:
        return
    who = f"{devices * workers} devices" if workers == 1 or devices > 1 else f"{workers} workers"
    if workers > 1 and devices > 1:
        who += f" ({devices} on each of {workers} workers)"
    fewer = "devices" if devices > 1 or workers == 1 else "workers"
    there = "1 sample" if batch_size == 1 else f"{batch_size} samples"
    raise ConfigError(f"{who} but only {there} in a batch; use a larger batch size or fewer {fewer}")


def check_checkpoints(checkpoints: "Checkpoints | None", job: "Job | None") -> None:
    if checkpoints is not None:
        checkpoints.check_place()
    if job is not None and job.elastic is not None and checkpoints is not None:
        raise ConfigError(
            "fit keeps checkpoints of workers that stay: who dies would be waited for at each of them; leave "
            "--min-workers, --max-workers and --max-restarts out and resume after a failure, or leave checkpoints= out"
        )


def check_local(sync: object, steps: int | None, checkpoints: "Checkpoints | None") -> bool:
    """Whether workers step by themselves. `steps` of an epoch, where that is known."""
    if isinstance(sync, str):
        return False
    from gradtide.sync import Local

    if not isinstance(sync, Local):
        return False
    check_window(sync.every, steps)
    if sync.over is not None and checkpoints is not None and (checkpoints.every or checkpoints.resume):
        raise ConfigError("fit keeps no checkpoints of local steps over servers; leave over= or checkpoints= out")
    return True


def check_window(every: int, steps: int | None) -> None:
    if steps is not None and every > steps:
        raise ConfigError(
            f"Local({every}): an epoch has {steps} steps, and workers meet at its end; meet every {steps} or more "
            "often, or make batches smaller"
        )


def check_split(given: dict[str, tuple[object, object]], job: "Job | None") -> None:
    """With split=: refuses options about copies of a whole model. given: (value, default) by name."""
    for name, (value, default) in given.items():
        if value != default:
            raise ConfigError(
                f"{name}={value!r} is for copies of a whole model, and split= for parts of one; leave one of them out"
            )
    if job is not None and job.elastic is not None:
        raise ConfigError(
            "a split model needs all of its workers: leave --min-workers, --max-workers and --max-restarts out, and "
            "resume from a checkpoint after a failure"
        )
