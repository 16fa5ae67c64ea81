"""One rank of an MPI between hosts: needs mpi4py and numpy only. Rank 0 reads `run TIMES SIZE KIND OPERATION`."""

import sys
import time

import numpy as np
from mpi4py import MPI

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


def main() -> None:
    world = MPI.COMM_WORLD
    first = world.Get_rank() == 0
    if first:
        print("ready", flush=True)
    order = np.zeros(3, np.int64)
    while True:
        if first:
            line = sys.stdin.readline().split()
            order[:] = (int(line[1]), int(line[2]), OPERATIONS.index(line[4])) if line else (0, 0, 0)
        arriving = world.Ibcast(order)
        while not arriving.Test():  # MPI waits by spinning, which would take the processor from who has the turn
            time.sleep(0.001)
        times, size_bytes, operation = (int(value) for value in order)
        if not times:
            return
        rows = np.zeros((world.Get_size(), size_bytes // 4 // world.Get_size()), np.float32)
        row, other = rows[0].copy(), np.zeros_like(rows)
        step = (
            lambda rows=rows: world.Allreduce(MPI.IN_PLACE, rows),
            lambda rows=rows: world.Bcast(rows),
            lambda row=row, rows=rows: world.Allgather(row, rows),
            lambda row=row, rows=rows: world.Reduce_scatter_block(rows, row),
            lambda rows=rows, other=other: world.Alltoall(rows, other),
        )[operation]
        step()
        world.Barrier()
        started = time.perf_counter()
        for _ in range(times):
            step()
        taken = world.reduce(time.perf_counter() - started, MPI.MAX)
        if first:
            print(taken, flush=True)


main()
