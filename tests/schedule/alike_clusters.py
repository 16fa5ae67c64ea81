"""Random clusters of machines that are alike, of four fabrics: what plans are held against the bound on."""

import numpy as np

__all__ = ["alike_cluster"]


def alike_cluster(seed: int) -> str:
    """A preset's name: 2 to 128 hosts of 1 to 8 GPUs and 1 to 8 NICs."""
    chance = np.random.default_rng(seed)
    hosts = int(2 ** chance.uniform(1, 7.01))
    gpus = int(chance.choice([1, 2, 4, 8]))
    nics = int(chance.choice([n for n in (1, 2, 4, 8) if max(n, gpus) % min(n, gpus) == 0]))
    gbits = int(chance.choice([25, 50, 100, 200, 400]))
    fabric = int(chance.integers(4))
    if fabric == 0:
        return f"ethernet-cluster:{hosts}x{max(2, gpus)}@{min(gbits, 100)}"
    if fabric == 1:
        return f"rail:{hosts}x{gpus}x{nics}@{gbits}"
    if fabric == 2:
        racks = 16 * max(1, hosts // 16) if hosts > 16 else hosts
        return f"leaf-spine:{racks}x{gpus}x{nics}@{gbits}/{int(chance.choice([1, 2, 4]))}"
    return f"superpod:{hosts if hosts <= 32 else 32 * (hosts // 32)}"
