"""Synchronisation schedules as data.

model.py     Op and Schedule
"""
