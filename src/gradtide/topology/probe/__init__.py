"""Links by measurement.

fit.py      times transfers, fits a latency and a bandwidth, builds a topology
network.py  builds one of several hosts, each with a NIC that its ranks share
machine.py  does so between processes of this machine
child.py    one of those processes
"""
