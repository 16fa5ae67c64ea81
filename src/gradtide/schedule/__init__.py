"""Synchronisation schedules as data.

model.py      Op and Schedule
request.py    what a strategy is asked for, and the register of strategies
"""
