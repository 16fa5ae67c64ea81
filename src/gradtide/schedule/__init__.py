"""Synchronisation schedules as data: built, proven, predicted, chosen.

model.py      Op and Schedule
request.py    what a strategy is asked for; the register of strategies
strategies/   one builder file a strategy
build/        what they are built from: wiring, rings, shapes, and the writer of ops
packing/      packs trees into a network as tightly as its wires allow
cuts/         what must cross a cut through the wiring, whatever the schedule
bound.py      the time that no schedule can beat
upgrade.py    which wires to make faster first, and what that is worth
verify.py     proves that a schedule gives the right result
predict/      simulates when each op starts and ends, what each link carries
classes/      clusters of machines that are alike: schedules a rank at a time, folded into classes
candidates.py every strategy built, proven and predicted
plan.py       all of them compared; the winner drawn
step/         a whole training step of a model that is split, as data
explain.py    why the best is the best, in plain words
serialize.py  a schedule as JSON and back
"""
