"""A topology by whatever a user calls it: a preset's name, a TOML file, `nvidia-smi topo -m` texts, Slurm's tree."""

from pathlib import Path

from gradtide.errors import OutputError, TopologyError
from gradtide.topology.clusters.host_kinds import HOST_KINDS, HostKind
from gradtide.topology.formats.host_texts import looks_like_host_list, parse_host_list
from gradtide.topology.formats.nvidia_smi import looks_like_nvidia_smi, parse_nvidia_smi
from gradtide.topology.formats.slurm import looks_like_slurm, parse_slurm
from gradtide.topology.formats.toml_file import format_toml, parse_toml
from gradtide.topology.model import Topology
from gradtide.topology.presets import is_preset_name, preset, resized_name
from gradtide.topology.rates import WireRates
from gradtide.topology.wording import nearest, shown

__all__ = ["read_topology", "toml_of", "topology_named", "write_topology"]

MOST_BYTES = 2_000_000  # a cluster of 4,096 devices takes about 1 MB


def topology_named(
    text: str, rates: WireRates | None = None, host_kind: str | None = None, hosts: int | None = None
) -> Topology:
    """The preset of this name, or what the file at this path describes.

    nvidia-smi's texts have wires of these rates; Slurm's hosts are of this kind; `hosts` is a number of hosts to have
    instead of the one that a preset or a TOML file with counts says.

    >>> len(topology_named("ring:8").nodes)
    8
    >>> topology_named("superpod:4", hosts=16).name
    'superpod:16'
    """
    if not is_preset_name(text) and (Path(text).suffix or "/" in text or Path(text).exists()):
        return read_topology(Path(text), rates, host_kind, hosts)
    if host_kind is not None:
        raise TopologyError(f"a kind of host goes with Slurm's topology.conf; {shown(text)} says what its hosts are")
    return preset(text if hosts is None else resized_name(text, hosts))


def read_topology(
    path: Path, rates: WireRates | None = None, host_kind: str | None = None, hosts: int | None = None
) -> Topology:
    """A checked topology from TOML, from `nvidia-smi topo -m` (or a list of hosts with such texts), or from Slurm."""
    text = _read_text(path)
    if looks_like_slurm(text):
        _refuse_hosts(hosts, path)
        return parse_slurm(text, str(path), path.stem, _kind_named(host_kind))
    if host_kind is not None:
        raise TopologyError(f"{path}: a kind of host goes with Slurm's topology.conf; this file says what hosts are")
    if looks_like_nvidia_smi(text):
        _refuse_hosts(hosts, path)
        return parse_nvidia_smi(text, str(path), name=path.stem, rates=rates or WireRates())

    def beside(file: str) -> str:
        return _read_text(path.parent / file)

    if looks_like_host_list(text):
        _refuse_hosts(hosts, path)
        return parse_host_list(text, str(path), path.stem, beside, rates)
    return parse_toml(text, str(path), path.stem, beside, hosts)


def _kind_named(name: str | None) -> HostKind | None:
    if name is not None and name not in HOST_KINDS:
        raise TopologyError(f"no kind of host is called {shown(name)}{nearest(name, HOST_KINDS)}")
    return HOST_KINDS[name] if name else None


def _refuse_hosts(hosts: int | None, path: Path) -> None:
    if hosts is not None:
        raise TopologyError(f"{path}: names its hosts one by one; a number of them goes with a preset or [[hosts]]")


def toml_of(topology: Topology) -> str:
    """The TOML file that describes a topology node by node, if read_topology would take it back."""
    text = format_toml(topology)
    if len(text.encode()) > MOST_BYTES:
        raise OutputError(
            f"{topology.name}: node by node that is more than {MOST_BYTES // 1_000_000} MB of TOML, which is not read "
            "back; give the preset's name instead, or describe it by counts, with [[hosts]] and [fabric]"
        )
    return text


def write_topology(topology: Topology, path: Path) -> None:
    text = toml_of(topology)
    try:
        path.write_text(text, encoding="utf-8")
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
