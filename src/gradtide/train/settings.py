"""What `gradtide train` is to train, and on what; plain data that a worker can be sent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.environment import read_environment
from gradtide.errors import ConfigError

if TYPE_CHECKING:
    from gradtide.sync import Local, Servers
    from gradtide.train.keeper import Checkpoints

__all__ = ["Settings"]


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
        from gradtide.train.loop import check_batch, check_options, check_window
        from gradtide.train.models import check_model
        from gradtide.train.rates import Rates, check_rate

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
        found = self._find_data()
        if self.every:
            check_window(self.every, -(-_samples(found) // (options["batch_size"] * growth * accumulate)))

    def _check_compression(self) -> None:
        compress = self.fit.get("compress")
        if compress is None:
            return
        from gradtide.sync.compressed.refuse import check_settings
        from gradtide.train.loop import check_compression

        found = check_compression(compress, self.how(), self.keeping())
        if found is not None:
            goes = "servers" if self.over_servers else "local" if self.every else self.sync
            check_settings(found, goes)

    def load(self) -> tuple[Any, Any]:
        """(train, test), each (inputs, targets)."""
        found = self._find_data()
        if found is None:
            from gradtide.train.digits import load_digits

            return load_digits()
        from gradtide.train.fashion_mnist import load_fashion_mnist

        return load_fashion_mnist(found)

    def _find_data(self) -> Path | None:
        """Where Fashion-MNIST is; None for the digits, which are embedded."""
        if self.data == "digits":
            if self.data_dir is not None:
                raise ConfigError("--data-dir goes with --data fashion-mnist; the digits are embedded")
            return None
        if self.data == "fashion-mnist":
            from gradtide.train.fashion_mnist import fashion_mnist_folder

            return fashion_mnist_folder(None if self.data_dir is None else Path(self.data_dir), read_environment())
        raise ConfigError(f"unknown data {self.data!r}; choose digits or fashion-mnist")


def _samples(folder: Path | None) -> int:
    """Of the training data: of Fashion-MNIST in a folder, or of the digits."""
    from gradtide.train.digits import TRAIN_SAMPLES
    from gradtide.train.fashion_mnist import FILES

    return TRAIN_SAMPLES if folder is None else next(iter(FILES.values()))[0][0]
