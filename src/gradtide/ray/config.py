"""GradtideConfig: what Ray Train's TorchTrainer takes as torch_config."""

import secrets
from dataclasses import dataclass
from typing import Any

from ray.train.torch.config import TorchConfig, _TorchBackend

from gradtide.errors import ConfigError
from gradtide.ray.in_worker import enter_job, find_storage
from gradtide.ray.store import StoreOnRay, StoreWishes
from gradtide.ray.versions import check_versions, versions_here

__all__ = ["GradtideBackend", "GradtideConfig"]


@dataclass
class GradtideConfig(TorchConfig):  # type: ignore[misc]
    """`TorchTrainer(loop, torch_config=GradtideConfig(servers=2, replicas=1))`: in `loop`, `gradtide.DataParallel` and
    `gradtide.fit` find the job. With `servers` it has a store of so many, each an actor with `server_cpus` CPUs, on as
    many nodes as there are; it ends with the workers, and begins with the checkpoint that they go on from."""

    backend: str | None = "gradtide"
    servers: int = 0
    replicas: int = 0
    server_cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise ConfigError(f"servers={self.servers} makes no sense; give 0 or more")
        if self.servers or self.replicas:
            self.wishes().check()

    def wishes(self) -> StoreWishes:
        return StoreWishes(self.servers, self.replicas, self.server_cpus)

    @property
    def backend_cls(self) -> "type[GradtideBackend]":
        return GradtideBackend

    def to_dict(self) -> dict[str, Any]:
        own = {"servers": self.servers, "replicas": self.replicas, "server_cpus": self.server_cpus}
        return {**super().to_dict(), **own}


class GradtideBackend(_TorchBackend):  # type: ignore[misc]
    """Runs beside Ray Train's controller."""

    def __init__(self) -> None:
        self._store: StoreOnRay | None = None

    def on_start(self, worker_group: Any, backend_config: GradtideConfig) -> None:
        _check_alike(worker_group)
        variables, secret = {"GRADTIDE_REPORTS": f"ray-train:{secrets.token_hex(3)}"}, b""
        self._end_store()  # of an attempt that failed
        if backend_config.servers:
            folder, begin_with = worker_group.execute_single(0, find_storage)
            self._store = StoreOnRay(_with_storage(backend_config.wishes(), folder, begin_with))
            self._store.start()
            variables["GRADTIDE_STORE"], secret = self._store.address, self._store.secret
        super().on_start(worker_group, backend_config)
        worker_group.execute(enter_job, variables, secret)

    def on_shutdown(self, worker_group: Any, backend_config: GradtideConfig) -> None:
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            self._end_store()

    def _end_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _check_alike(worker_group: Any) -> None:
    found = worker_group.execute(versions_here)
    check_versions(found[0], "worker 0", {f"worker {rank}": versions for rank, versions in enumerate(found)})


def _with_storage(wishes: StoreWishes, folder: str, begin_with: str) -> StoreWishes:
    from dataclasses import replace

    from gradtide.checkpoint.shelf import find_checkpoint

    of_servers = bool(begin_with) and bool(find_checkpoint(begin_with)[1].shards)
    return replace(wishes, roots=(folder,), restore=begin_with if of_servers else "")
