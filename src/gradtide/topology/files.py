"""A topology by whatever a user calls it: a preset's name, a TOML file, saved `nvidia-smi topo -m` output."""

from pathlib import Path

from gradtide.errors import OutputError, TopologyError
from gradtide.topology.formats.nvidia_smi import looks_like_nvidia_smi, parse_nvidia_smi
from gradtide.topology.formats.toml_file import format_toml, parse_toml
from gradtide.topology.model import Topology
from gradtide.topology.presets import is_preset_name, preset
from gradtide.topology.rates import WireRates
from gradtide.topology.wording import shown

__all__ = ["read_topology", "topology_named", "write_topology"]

MOST_BYTES = 2_000_000  # a cluster of 4,096 devices takes about 1 MB


def topology_named(text: str, rates: WireRates | None = None) -> Topology:
    """The preset of this name, or what the file at this path describes (nvidia-smi text with wires of these rates).

    >>> len(topology_named("ring:8").nodes)
    8
    """
    if not is_preset_name(text) and (Path(text).suffix or "/" in text or Path(text).exists()):
        return read_topology(Path(text), rates)
    return preset(text)


def read_topology(path: Path, rates: WireRates | None = None) -> Topology:
    """A checked topology from a TOML file or from `nvidia-smi topo -m` text, whose wires run at `rates`."""
    text = _read_text(path)
    if looks_like_nvidia_smi(text):
        return parse_nvidia_smi(text, str(path), name=path.stem, rates=rates or WireRates())
    return parse_toml(text, str(path), default_name=path.stem)


def write_topology(topology: Topology, path: Path) -> None:
    try:
        path.write_text(format_toml(topology), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write {path}: {error.strerror}; name another file") from None


def _read_text(path: Path) -> str:
    """The whole file; one that is too large or not text is refused before anything looks into it."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise TopologyError(f"can't read a topology from {shown(str(path))}: {why}") from None
    if len(data) > MOST_BYTES:
        most = f"{MOST_BYTES // 1_000_000} MB"
        raise TopologyError(f"{path}: larger than {most}, which no topology is; name a TOML file that describes one")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"{path}, line {line}: not text (byte {error.start} is not UTF-8); expected TOML") from None
