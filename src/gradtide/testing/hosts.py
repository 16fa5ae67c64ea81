"""Two hosts on one machine: network namespaces joined by a wire of a given rate. Needs root, ip and tc (iproute2)."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gradtide.errors import ConfigError

__all__ = ["ADDRESSES", "INTERFACES", "cut_wire", "two_hosts"]

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACES = ("gt0", "gt1")


@contextmanager
def two_hosts(rate: str = "160mbit", queue: str = "200ms") -> Iterator[tuple[list[str], list[str]]]:
    """For each host, what to put before a command to run it there. `rate` is tc's: 160mbit, 1gbit."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        raise ConfigError("two hosts need root, and ip and tc (iproute2); run it as root, or on two machines")
    names = [f"gradtide-{os.getpid()}-{number}" for number in range(2)]
    with ExitStack() as stack:
        try:
            for name in names:
                _run("ip", "netns", "add", name)
                stack.callback(_run, "ip", "netns", "del", name)
            ends = [part for end in zip(INTERFACES, names, strict=True) for part in ("name", end[0], "netns", end[1])]
            _run("ip", "link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
            for name, address, interface in zip(names, ADDRESSES, INTERFACES, strict=True):
                inside = ("ip", "netns", "exec", name)
                _run(*inside, "ip", "addr", "add", f"{address}/24", "dev", interface)
                _run(*inside, "ip", "link", "set", interface, "up")
                _run(*inside, "ip", "link", "set", "lo", "up")
                limit = ("tbf", "rate", rate, "burst", "32kb" if rate.endswith("mbit") else "256kb", "latency", queue)
                _run(*inside, "tc", "qdisc", "add", "dev", interface, "root", *limit)
        except subprocess.CalledProcessError as error:
            raise ConfigError(
                f"two hosts can't be made here ({error.stderr.strip()}); network namespaces are needed"
            ) from None
        yield ["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]]


@contextmanager
def cut_wire(names: Sequence[str]) -> Iterator[None]:
    """Nothing arrives any more between the two hosts of these names, and neither is told: frames go to nobody."""
    for name, address, interface in zip(names, reversed(ADDRESSES), INTERFACES, strict=True):
        nobody = ("lladdr", "02:00:00:00:00:99", "dev", interface, "nud", "permanent")
        _run("ip", "-n", name, "neigh", "replace", address, *nobody)
    try:
        yield
    finally:
        for name, address, interface in zip(names, reversed(ADDRESSES), INTERFACES, strict=True):
            _run("ip", "-n", name, "neigh", "del", address, "dev", interface)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
