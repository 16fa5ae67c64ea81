"""A checkpoint's values as folders that others read: Hugging Face's sharded safetensors, and torch's DCP."""

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from gradtide.errors import ConfigError, DataError, OutputError
from gradtide.store.snapshot.export import read_plain

__all__ = ["FORMATS", "read_folder", "write_folder"]

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_DCP_METADATA = ".metadata"


def write_folder(path: Path, tensors: Mapping[str, Tensor], name: str, shard_bytes: int) -> None:
    """Makes the folder, whole or not at all. shard_bytes: of one file, where the format has several."""
    if name not in FORMATS:
        raise ConfigError(f"--format {name!r} is unknown; choose {' or '.join(FORMATS)}, or name a file instead")
    if shard_bytes < 1:
        raise ConfigError(f"--shard-bytes {shard_bytes} makes no sense; give 1 or more")
    with _made_whole(path) as partial:
        # Values read from one file share its memory, which both formats would take for one tensor under two names.
        FORMATS[name](partial, {key: tensor.clone() for key, tensor in tensors.items()}, shard_bytes)


@contextlib.contextmanager
def _made_whole(path: Path) -> Iterator[Path]:
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise OutputError(f"{path} can't be written: {error.strerror}") from None
    try:
        partial.chmod(0o755)
        yield partial
        partial.rename(path)
    except OSError as error:
        raise OutputError(f"{path} can't be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_hf(folder: Path, tensors: dict[str, Tensor], shard_bytes: int) -> None:
    try:
        from huggingface_hub import save_torch_state_dict
    except ModuleNotFoundError:
        raise ConfigError("--format hf needs huggingface_hub: pip install 'gradtide[huggingface]'") from None
    save_torch_state_dict(tensors, folder, max_shard_size=shard_bytes)


def _write_dcp(folder: Path, tensors: dict[str, Tensor], shard_bytes: int) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # unavailable: it is one process, as asked
        save(tensors, checkpoint_id=folder, no_dist=True)


FORMATS: dict[str, Callable[[Path, dict[str, Tensor], int], None]] = {"hf": _write_hf, "dcp": _write_dcp}


def read_folder(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder of safetensors, one file or several with an index. One of DCP is not read: its list of
    tensors is a pickle."""
    if (path / _DCP_METADATA).exists():
        raise ConfigError(
            f"{path / _DCP_METADATA} is a pickle, which may run code and is not read here; load it with "
            "torch.distributed.checkpoint, and save it with safetensors.torch.save_file"
        )
    if not (path / _INDEX).exists():
        return read_plain(path / _WHOLE)
    place_of = _read_index(path / _INDEX)
    found: dict[str, Tensor] = {}
    for file in sorted(set(place_of.values())):
        there = read_plain(path / file)
        named = {name for name, where in place_of.items() if where == file}
        if set(there) != named:
            odd = sorted(set(there) ^ named)[0]
            raise DataError(f"{path / file} and {_INDEX} disagree about {odd}; copy the folder again, whole")
        found |= there
    return found


def _read_index(file: Path) -> dict[str, str]:
    """Which file has which tensor."""
    try:
        place_of = json.loads(file.read_text())["weight_map"]
        plain = all(isinstance(where, str) and Path(where).name == where for where in place_of.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is no index of safetensors: {error!r}") from None
    if not plain or not place_of:
        raise DataError(f"{file} is no index of safetensors: it must name files beside it")
    return dict(place_of)
