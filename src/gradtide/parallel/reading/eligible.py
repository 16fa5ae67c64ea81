"""Whether a worker may read its part of a batch alone, and get just what it would cut from the whole batch.

It may where each sample is made by itself: a DataLoader over a Dataset that has its samples by index, put together by
torch's own collate function. A function of the user's may mix samples or pad them to the longest: who knows that
a part is as good says so.
"""

from typing import Any, Literal

from torch.utils.data import DataLoader, IterableDataset, MapDataPipe, Subset, TensorDataset, default_collate

from gradtide.errors import ConfigError

__all__ = ["Read", "describe_reading", "draws_nothing", "has_agreeable_order", "why_whole"]

Read = Literal["part", "whole"] | None  # None: the part, where that is the same
_LISTS = "datasets.arrow_dataset"  # Hugging Face's, which takes lists of indices, and makes each sample by itself


def has_agreeable_order(loader: Any) -> bool:
    """Whether it is a DataLoader that has its samples by index."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def why_whole(loader: Any, read: Read, whole: tuple[str, ...], check: bool) -> str:
    """Why every worker reads whole batches and cuts its part; nothing where it reads its part alone."""
    if read not in (None, "part", "whole"):
        raise ConfigError(
            f"shard: read={read!r}; say 'part', 'whole' or None, which is the part where that is the same"
        )
    if read == "whole":
        return "read='whole'"
    needed = _why_not(loader, whole, check)
    if read == "part":
        if needed:
            raise ConfigError(f"shard(..., read='part') can't be: {needed}; leave read= out")
        return ""
    return needed or _why_unsure(loader)


def describe_reading(loader: Any, read: Read, why: str) -> str:
    """How it differs from reading in one process, or what would be faster; nothing where there is nothing to say."""
    if read == "whole":
        return ""
    if why:
        return f"every worker reads whole batches: {why}"
    if read == "part" or loader.num_workers:
        return "unlike in one process, what the dataset draws at random is each worker's own, who reads its part alone"
    return ""


def draws_nothing(dataset: Any) -> bool:
    """Whether it is known to draw no random numbers: to look takes 0.1 ms a batch."""
    return draws_nothing(dataset.dataset) if type(dataset) is Subset else type(dataset) is TensorDataset


def _why_not(loader: Any, whole: tuple[str, ...], check: bool) -> str:
    """What makes it impossible."""
    if not has_agreeable_order(loader) or isinstance(loader.dataset, MapDataPipe):
        return "only a DataLoader over a Dataset with a length can be asked for some samples of a batch"
    if type(loader).__iter__ is not DataLoader.__iter__ or type(loader)._get_iterator is not DataLoader._get_iterator:
        return f"{type(loader).__name__} goes over its batches in a way of its own"
    if whole:
        return f"whole={list(whole)} is of the whole batch"
    return "" if check else "with check=False workers agree on no order"


def _why_unsure(loader: Any) -> str:
    """What may make a part that was read alone another one than that of the whole batch."""
    if loader.batch_sampler is None:
        return "with batch_size=None the dataset makes whole batches; read='part' if it can be asked for some of a list"
    if loader.collate_fn is not default_collate:
        name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        return (
            f"collate_fn={name} may mix samples or pad them; read='part' if a worker's part may be put together alone"
        )
    if not _makes_each_by_itself(loader.dataset):
        name = type(loader.dataset).__name__
        return f"{name} makes lists of samples at once; read='part' if it makes each by itself"
    return ""


def _makes_each_by_itself(dataset: Any) -> bool:
    if isinstance(dataset, Subset):
        return _makes_each_by_itself(dataset.dataset)
    if not getattr(dataset, "__getitems__", None) or isinstance(dataset, TensorDataset):
        return True
    if type(dataset).__module__ == _LISTS:  # unless a function of the user's makes something of the list
        return bool(dataset.format["type"] != "custom")
    return False
