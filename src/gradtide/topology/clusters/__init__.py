"""Clusters by counts: so many hosts of a kind, joined by a fabric of so many switches.

host_kinds.py   one machine: its GPUs, its NICs and what joins them
fabrics.py      the switches between machines: rails, leaves, spines, cores
build.py        hosts and a fabric as a topology
named.py        clusters that have a name: superpod, rail, leaf-spine, fat-tree, mixed
tori.py         devices in a grid whose edges meet
"""
