"""Random clusters of up to 64 devices, one NIC of them slow or machines of two generations.

Seeds from 100 to 117 are only ever measured; those from 1,000 on were used while the planner was made.
"""

import numpy as np

from gradtide.topology.files import topology_named
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.what_if import altered

__all__ = ["uneven_cluster"]


def uneven_cluster(seed: int) -> tuple[str, Topology]:
    """What it is in words, and the cluster: two of three have a slow NIC, the third is of two generations."""
    chance = np.random.default_rng([seed, 64])
    hosts, gpus = int(chance.integers(2, 9)), int(chance.choice([2, 4, 8]))
    nics = int(chance.choice([n for n in (1, 2, 4, 8) if n <= gpus]))
    gbits, over = int(chance.choice([100, 200, 400])), int(chance.choice([1, 2, 4]))
    if seed % 3 == 2:
        old = int(chance.integers(1, hosts))
        return f"mixed:{old}+{hosts - old}", topology_named(f"mixed:{old}+{hosts - old}")
    fabrics = [
        f"superpod:{hosts}",
        f"rail:{hosts}x{gpus}x{nics}@{gbits}",
        f"leaf-spine:{hosts}x{gpus}x{nics}@{gbits}/{over}",
    ]
    name = fabrics[int(chance.integers(3))]
    whole = topology_named(name)
    slow = str(chance.choice([node.name for node in whole.nodes if node.kind is NodeKind.NIC]))
    factor = float(chance.choice([0.1, 0.25, 0.5, 0.75]))
    return f"{name} {slow}={factor}", altered(whole, [], [f"{slow}={factor}"])
