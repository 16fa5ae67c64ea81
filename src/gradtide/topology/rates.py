"""How fast the usual wires are, a direction, and how long a hop over them takes."""

from dataclasses import dataclass

__all__ = ["ETHERNET_S", "NVLINK_S", "PCIE_S", "QPI_S", "RDMA_S", "SWITCH_S", "TEXTBOOK_NVLINK", "WireRates"]

# Latencies are of one hop as collectives see it: a kernel launch and a PCIe or NVLink round. A hop through a
# switch is two links, so each of them has half.
PCIE_S = 3e-6
NVLINK_S = 1.5e-6
QPI_S = 0.5e-6  # socket to socket: a cache line takes about 0.1 us, a DMA crossing some more
ETHERNET_S = 20e-6  # NIC to NIC through one switch, the kernel's TCP included
RDMA_S = 5e-6  # NIC to NIC through one switch without the kernel: InfiniBand, RoCE; the proxy's share included
SWITCH_S = 0.5e-6  # each further wire between two switches

# A link of the DGX-1 as the textbook counts it: 300 Gbit/s for both directions (25 GB/s each on the data sheet).
TEXTBOOK_NVLINK = 18e9


@dataclass(frozen=True, slots=True)
class WireRates:
    """Bytes per second of one wire in one direction."""

    nvlink: float = 25e9  # NVLink 2, 3 and 4; NVLink 1 (P100) has 20e9, NVLink 5 (B200) 50e9
    pcie: float = 16e9  # 3.0 x16, as the textbook rounds 15.75; 4.0 has 32e9, 5.0 64e9
    socket: float = 38.4e9  # between two CPUs: two QPI links of 9.6 GT/s and 2 bytes
