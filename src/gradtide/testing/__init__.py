"""A store in one process, on a virtual clock and a bad network; and a checker of what it promised.

clock.py       time that passes only when everything due has happened
network.py     delays, reorders, drops, duplicates and cuts, by a seed
numbers.py     integers for values, that show every wrong order or count
actors.py      the shells around the store's machines
scripts.py     what simulated workers and clients do
history.py     what happened, and the checker
simulate.py    scenarios by seed; `python -m gradtide.testing.simulate --seed N` replays one
check_transport.py  what every way to move bytes must do
proxy.py       real sockets on a bad network: drops, duplicates, delays and cuts
"""
