"""One rank of an MPI, run by the Python that has it: needs mpi4py and numpy only. Rank 0 reads the commands."""

import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    first = world.Get_rank() == 0
    if first:
        print("ready", flush=True)
    order = np.zeros(2, np.int64)
    while True:
        if first:
            line = sys.stdin.readline().split()
            order[:] = (int(line[1]), int(line[2])) if line else (0, 0)
        arriving = world.Ibcast(order)
        while not arriving.Test():  # MPI waits by spinning, which would take the processor from who has the turn
            time.sleep(0.001)
        times, size_bytes = (int(value) for value in order)
        if not times:
            return
        tensor = np.zeros(size_bytes // 4, np.float32)
        world.Allreduce(MPI.IN_PLACE, tensor)
        world.Barrier()
        started = time.perf_counter()
        for _ in range(times):
            world.Allreduce(MPI.IN_PLACE, tensor)
        taken = world.reduce(time.perf_counter() - started, MPI.MAX)
        if first:
            print(taken, flush=True)


main()
