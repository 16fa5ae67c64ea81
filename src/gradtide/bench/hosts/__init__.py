"""Benchmarks between hosts, in network namespaces of one machine; and what planning for thousands of hosts costs.

planning.py     time and memory of the planner over the size of the cluster
overlap.py      what overlap is worth on a slow wire, beside the planner's prediction
collectives.py  collectives against Gloo, Open MPI and a bare pair of sockets
"""
