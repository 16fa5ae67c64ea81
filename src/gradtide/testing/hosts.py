"""Hosts on one machine: network namespaces joined by wires of a given rate. Needs root, ip and tc (iproute2)."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gradtide.errors import ConfigError

__all__ = ["ADDRESSES", "INTERFACES", "cut_wire", "limit_flows", "plug", "several_hosts", "two_hosts", "unplug"]

_MOST = 8
_FLOW_CLASSES = 256
_made = itertools.count()
ADDRESSES = tuple(f"10.77.0.{number + 1}" for number in range(_MOST))
INTERFACES = tuple(f"gt{number}" for number in range(_MOST))


@contextmanager
def two_hosts(rate: str = "160mbit", queue: str = "200ms") -> Iterator[tuple[list[str], list[str]]]:
    """For each host, what to put before a command to run it there. `rate` is tc's: 160mbit, 1gbit; "": as it is."""
    with several_hosts(2, rate, queue) as (one, other):
        yield one, other


@contextmanager
def several_hosts(count: int, rate: str = "160mbit", queue: str = "200ms") -> Iterator[list[list[str]]]:
    """The same for so many: two are joined by one wire, more by a switch."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        raise ConfigError("two hosts need root, and ip and tc (iproute2); run it as root, or on two machines")
    made = next(_made)
    names = [f"gradtide-{os.getpid()}-{made}-{number}" for number in range(count)]
    with ExitStack() as stack:
        try:
            for name in names:
                _add(stack, name)
            _join_two(names) if count == 2 else _join_by_switch(stack, names)
            for name, address, interface in zip(names, ADDRESSES, INTERFACES, strict=False):
                inside = ("ip", "netns", "exec", name)
                _run(*inside, "ip", "addr", "add", f"{address}/24", "dev", interface)
                _run(*inside, "ip", "link", "set", interface, "up")
                _run(*inside, "ip", "link", "set", "lo", "up")
                if rate:
                    limit = ("tbf", "rate", rate, "burst", _burst(rate), "latency", queue)
                    _run(*inside, "tc", "qdisc", "add", "dev", interface, "root", *limit)
        except subprocess.CalledProcessError as error:
            raise ConfigError(
                f"two hosts can't be made here ({error.stderr.strip()}); network namespaces are needed"
            ) from None
        yield [["ip", "netns", "exec", name] for name in names]


def _burst(rate: str) -> str:
    """A bucket that is full before the kernel looks again gives away the rate: a small one had 0.6 Gbit/s of one on a
    busy machine. One that is too large lets small tensors pass unlimited."""
    bits = float(rate.removesuffix("mbit")) * 1e6 if rate.endswith("mbit") else float(rate.removesuffix("gbit")) * 1e9
    return "256kb" if bits >= 5e8 else "32kb"


def _add(stack: ExitStack, name: str) -> None:
    _run("ip", "netns", "add", name)
    stack.callback(_run, "ip", "netns", "del", name)


def _join_two(names: Sequence[str]) -> None:
    ends = [part for end in zip(INTERFACES, names, strict=False) for part in ("name", end[0], "netns", end[1])]
    _run("ip", "link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])


def _join_by_switch(stack: ExitStack, names: Sequence[str]) -> None:
    """A bridge in a namespace of its own."""
    switch = f"{names[0]}-switch"
    _add(stack, switch)
    _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "switch", "up")
    for name, interface in zip(names, INTERFACES, strict=False):
        port = ("name", f"to-{interface}", "netns", switch)
        _run("ip", "link", "add", "name", interface, "netns", name, "type", "veth", "peer", *port)
        _run("ip", "-n", switch, "link", "set", port[1], "master", "switch", "up")


@contextmanager
def cut_wire(names: Sequence[str]) -> Iterator[None]:
    """Nothing arrives any more between the two hosts of these names, and neither is told: frames go to nobody."""
    for name, address, interface in zip(names, reversed(ADDRESSES[:2]), INTERFACES, strict=False):
        nobody = ("lladdr", "02:00:00:00:00:99", "dev", interface, "nud", "permanent")
        _run("ip", "-n", name, "neigh", "replace", address, *nobody)
    try:
        yield
    finally:
        for name, address, interface in zip(names, reversed(ADDRESSES[:2]), INTERFACES, strict=False):
            _run("ip", "-n", name, "neigh", "del", address, "dev", interface)


def unplug(names: Sequence[str], number: int) -> None:
    """One host of several (three or more) leaves the switch: nothing arrives there or comes from there, and nobody is
    told."""
    _run("ip", "-n", f"{names[0]}-switch", "link", "set", f"to-{INTERFACES[number]}", "nomaster")


def plug(names: Sequence[str], number: int) -> None:
    """It is back."""
    _run("ip", "-n", f"{names[0]}-switch", "link", "set", f"to-{INTERFACES[number]}", "master", "switch", "up")


def limit_flows(names: Sequence[str], rate: str) -> None:
    """Each connection that leaves these hosts gets so much of the wire and no more, as in some clouds. It falls into
    one of many classes by its ports; two in one would share. Needs nft (nftables)."""
    if not shutil.which("nft"):
        raise ConfigError("limiting each flow needs nft (nftables); install it")
    classes = [f"1:{number + 1:x}" for number in range(_FLOW_CLASSES)]
    chosen = ", ".join(f"{number} : {name}" for number, name in enumerate(classes))
    rule = f"meta l4proto tcp meta priority set jhash tcp sport . tcp dport mod {_FLOW_CLASSES} map {{ {chosen} }}"
    table = f"table inet flows {{\n chain out {{\n type filter hook output priority 0;\n {rule}\n }}\n}}\n"
    for name, interface in zip(names, INTERFACES, strict=False):
        lines = [f"qdisc add dev {interface} root handle 1: htb default ffff r2q 1000"]
        limit = f"htb rate {rate} burst 64kb cburst 64kb"
        lines += [f"class add dev {interface} parent 1: classid {number} {limit}" for number in classes]
        try:
            _run("ip", "netns", "exec", name, "tc", "-batch", "-", given="\n".join(lines) + "\n")
            _run("ip", "netns", "exec", name, "nft", "-f", "-", given=table)
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"flows can't be limited here ({error.stderr.strip()}); htb and nft are needed") from None


def _run(*command: str, given: str = "") -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, input=given)
