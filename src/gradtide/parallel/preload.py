"""What a process that makes workers by fork loads for all of them, if they train: what optimizers and wrappers need."""

from gradtide.collective.groups import preload

__all__ = ["load"]


def load() -> None:
    """Starts no thread. Making the first optimizer imports torch._dynamo: 1.1 s, and 80 MB that workers then share."""
    preload.load()

    import gradtide.parallel.data_parallel
    import gradtide.parallel.sharding  # noqa: F401
