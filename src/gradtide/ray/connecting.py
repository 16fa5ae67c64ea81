"""Joins a Ray cluster as a job's driver; what can go wrong is one line."""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.launch.target import Target
from gradtide.ray.placing import ClusterNode
from gradtide.transport.authenticate import family_of

__all__ = ["check_that_all_answer", "cluster_nodes", "connect_to_ray", "what_travels", "why_silent"]

_CONNECT_S = 3.0


def what_travels(target: Target) -> tuple[str, Target]:
    """The folder that Ray copies to all nodes, and the target as it is called there. That is the current folder if the
    script is in it, as for a module, else the script's own."""
    here = Path.cwd()
    if target.is_module:
        return str(here), target
    script = Path(os.path.abspath(target.name))
    folder = here if script.is_relative_to(here) else script.parent
    return str(folder), Target(str(script.relative_to(folder)), target.arguments)


def connect_to_ray(address: str, folder: str) -> Any:
    """Ray's module, once this process is a driver whose actors find the folder's content where they start."""
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray is not installed here; say: pip install 'gradtide[ray]'") from None
    address = address or read_environment().ray_address or "auto"
    if "://" in address:
        raise ConfigError(f"{address} is Ray's client; run gradtide on a node of the cluster, with --address HOST:PORT")
    if address != "auto":
        _check_that_it_answers(address)
    _join(ray, address, folder)
    if not _is_here(ray.util.get_node_ip_address()):
        here = _address_towards(ray.get_runtime_context().gcs_address)
        ray.shutdown()
        _join(ray, address, folder, here)
    return ray


def _join(ray: Any, address: str, folder: str, here: str | None = None) -> None:
    """Ray takes the first of its processes that it sees, which may be of another node: of a container beside this one,
    for example. `here` is the address of the right one."""
    try:
        ray.init(
            address=address, runtime_env={"working_dir": folder}, log_to_driver=False, logging_level="ERROR",
            configure_logging=True, _node_ip_address=here,
        )  # fmt: skip
    except Exception as error:
        ray.shutdown()
        raise ConfigError(_in_a_line(error, address, folder)) from None


def _is_here(host: str) -> bool:
    try:
        with socket.create_server((host, 0), family=family_of(host)):
            return True
    except OSError:
        return False


def _address_towards(cluster: str) -> str:
    """This machine's, as the cluster sees it."""
    host, _, port = cluster.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as line:
        return str(line.getsockname()[0])


def check_that_all_answer(ray: Any) -> None:
    """Ray itself believes a node alive for half a minute and more after it is gone, and would place workers there."""
    nodes = cluster_nodes(ray)
    with ThreadPoolExecutor(len(nodes) or 1) as pool:
        for node, why in zip(nodes, pool.map(why_silent, nodes), strict=True):
            if why:
                raise ConfigError(
                    f"node {node.address} of the Ray cluster can't be reached from here ({why}); is it gone, or "
                    "a firewall in between? Ray forgets a dead node within a minute"
                )


def why_silent(node: ClusterNode) -> str:
    """Nothing if Ray's process there answers."""
    try:
        socket.create_connection((node.address, node.port), _CONNECT_S).close()
        return ""
    except OSError as error:
        return error.strerror or str(error)


def cluster_nodes(ray: Any) -> list[ClusterNode]:
    """Those that Ray believes alive, the largest first."""
    found = [
        ClusterNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (-node.gpus, -node.cpus, node.address))


def _check_that_it_answers(address: str) -> None:
    """Ray itself would try for a minute."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a Ray cluster; give HOST:PORT, as ray start has shown it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one: ray start --head, or name "
            "another one: --address"
        ) from None


def _in_a_line(error: Exception, address: str, folder: str) -> str:
    text = " ".join(str(error).split())
    if too_large := re.search(r"Package size \((.+?)\) exceeds the maximum size of (\S+)\.", text):
        size, most = too_large.groups()
        return (
            f"{folder} travels to the nodes with the script, and is {size}, where Ray takes {most}; keep data "
            "elsewhere, or name what is to stay here in a file .rayignore there"
        )
    if isinstance(error, ConnectionError) and address == "auto":
        return "no Ray cluster runs here; start one: ray start --head, or name one: --address HOST:PORT"
    token = "; does it ask for a token? Then say RAY_AUTH_MODE=token" if isinstance(error, ConnectionError) else ""
    return f"Ray can't be joined at {address} ({text[:300]}){token}"
