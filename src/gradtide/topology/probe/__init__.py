"""Links by measurement.

fit.py      times transfers, fits a latency and a bandwidth, builds a topology
machine.py  does so between processes of this machine
child.py    one of those processes
"""
