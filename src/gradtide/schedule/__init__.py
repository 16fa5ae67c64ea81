"""Synchronisation schedules as data.

model.py     Op and Schedule
request.py   what a strategy is asked for, and the register of strategies
draw/        pictures: traffic on a topology, times over sizes
timeline.py  a run as a Chrome trace, for Perfetto
"""
