"""Synchronisation schedules as data: built, proven, predicted, chosen.

model.py      Op and Schedule
request.py    what a strategy is asked for; the register of strategies
strategies/   one builder file a strategy
build/        what they are built from: wiring, rings, shapes, and the writer of ops
packing/      packs trees into a network as tightly as its wires allow
bound.py      the time that no schedule can beat
verify.py     proves that a schedule gives the right result
predict/      simulates when each op starts and ends, what each link carries
plan.py       every strategy built, proven, predicted and compared; the winner drawn
explain.py    why the best is the best, in plain words
serialize.py  a schedule as JSON and back
"""
