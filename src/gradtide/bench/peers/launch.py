"""A worker that says when it is ready: torch is loaded, and the others are found. Or Ray's driver of such workers."""

import sys

__all__ = ["main"]


def _gloo() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print("ready", flush=True)
    dist.destroy_process_group()


def _gradtide() -> None:
    import torch  # noqa: F401

    from gradtide.collective import Group

    Group.from_environment()
    print("ready", flush=True)


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
    elif kind == "gloo":
        _gloo()
    else:
        _gradtide()


if __name__ == "__main__":
    main(sys.argv[1:])
