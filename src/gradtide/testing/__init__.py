"""What tests use: a store on a virtual clock, faults as named values, hosts on one machine, and contract checks.

faults.py            what goes wrong, as named values
simulator/           a store in one process, on a virtual clock and a bad network; and a checker of what it promised
scenarios.py         everything about a simulated run but for chance, drawn by a seed
simulate.py          runs them; `python -m gradtide.testing.simulate --seed N` replays one
elastic.py           the same for stores that grow and shrink; `python -m gradtide.testing.elastic --seed N`
elections.py         the same for several coordinators; `python -m gradtide.testing.elections --seed N`
hardship.py          the same for what happens on several machines; `python -m gradtide.testing.hardship --seed N`
fleet/               a job on many nodes, on a virtual clock; `python -m gradtide.testing.fleet.simulation`
check_handle.py      what every handle must do, whatever it is a handle of
check_transport.py   what every way to move bytes must do
check_codec.py       what every codec must do
local_oracle.py      local steps in one process, which plays all workers
local_replay.py      an asynchronous run of them once more, in the order that its servers recorded
allocations.py       the bytes that torch allocates while something runs
hosts.py             two hosts on one machine, joined by a slow wire
"""
