"""A store in one process, on a virtual clock and a bad network; and a checker of what it promised.

clock.py       time that passes only when everything due has happened
network.py     delays, reorders, drops, duplicates and cuts, by a seed
numbers.py     integers for values, that show every wrong order or count
faults.py      what goes wrong, as named values
actors.py      the shell around clients
processes.py   the shells around servers and coordinator, that can be killed, stopped and started
trouble.py     lets faults happen, within what the replicas can make up for or beyond it
scripts.py     what simulated workers and clients do
history.py     what happened, and the checker
outcome.py     what the servers hold in the end
wire.py        bytes back to messages, the large ones once
simulate.py    scenarios by seed; `python -m gradtide.testing.simulate --seed N` replays one
elastic.py     the same for stores that grow and shrink; `python -m gradtide.testing.elastic --seed N`
chaos.py       real processes that are killed, stopped and cut off while workers push exact integers
chaos_worker.py  one such worker
islands.py     servers in networks of their own, that can be unplugged
soak.py        long runs: training under a kill every 20 s, and on an overloaded machine
trainer.py     a worker of these
footprint.py   what processes take of this machine, and which are left
comings.py     real servers and workers that come and go while others train in rounds
round_worker.py  one that stays
check_transport.py  what every way to move bytes must do
hosts.py       two hosts on one machine, joined by a slow wire
proxy.py       real sockets on a bad network: drops, duplicates, delays and cuts
"""
