"""Synchronisation schedules as data: built, proven, predicted, chosen, drawn.

model.py          Op and Schedule
request.py        what a strategy is asked for; the register of strategies
strategies/       one builder file a strategy
wiring.py         who of the asked devices reaches whom, how fast and how far
rings.py          finds orders of the devices in which each reaches the next
shapes.py         chains, stars and trees over the wiring
writer.py         from trees to ops with deps
packing/          packs trees into a network as tightly as its wires allow
bound.py          the time that no schedule can beat
verify.py         proves that a schedule gives the right result
resources.py      links and wires that ops compete for
sharing.py        how flows share them: max-min fair
simulate.py       when each op starts and ends, what each link carries
servers_model.py  the same for parameter servers in very large clusters
plan.py           every strategy built, proven, predicted and compared
explain.py        why the best is the best, in plain words
serialize.py      a schedule as JSON and back
timeline.py       a schedule's run as a Chrome trace
draw/             pictures of topologies, traffic and sizes
"""
