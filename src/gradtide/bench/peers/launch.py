"""A worker that says when it is ready: torch is loaded, and the others are found; and when it has added up with them
for the first time. Or Ray's driver of such workers."""

import sys

__all__ = ["main"]


def _process_group(backend: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    print("ready", flush=True)
    dist.all_reduce(torch.ones(1))
    print("added", flush=True)
    dist.destroy_process_group()


def _gradtide() -> None:
    import torch

    from gradtide.collective import Group

    with Group.from_environment() as group:
        print("ready", flush=True)
        group.all_reduce(torch.ones(1))
        print("added", flush=True)


def _torch() -> None:
    import torch  # noqa: F401

    print("ready", flush=True)


def _ray_actors(workers: int, address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")

    class Importer:
        def load(self) -> bool:
            import torch

            return bool(torch.__version__)

    actors = [ray.remote(Importer).options(num_cpus=1).remote() for _ in range(workers)]
    assert all(ray.get([actor.load.remote() for actor in actors]))
    print("ready\n" * workers, flush=True)


def _ray(workers: int) -> None:
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)

    def join(rank: int) -> int:
        import torch  # noqa: F401

        from gradtide.collective import Group

        return Group.join("gradtide-bench-ray", rank, workers).size

    joining = ray.remote(join)
    assert ray.get([joining.remote(rank) for rank in range(workers)]) == [workers] * workers
    print("ready\n" * workers, flush=True)


def main(arguments: list[str]) -> None:
    kind, *rest = arguments
    if kind == "ray":
        _ray(int(rest[0]))
    elif kind == "ray-actors":
        _ray_actors(int(rest[0]), rest[1])
    elif kind == "torch":
        _torch()
    elif kind == "process-group":
        _process_group(rest[0])
    else:
        _gradtide()


if __name__ == "__main__":
    main(sys.argv[1:])
