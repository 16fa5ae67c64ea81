"""What must cross a cut through the wiring, whatever the schedule.

partitions.py  simple ways to cut a topology into groups: devices, machines, racks, pods, halves
crossing.py    what must leave and enter each group, and how long its links take for that
"""
