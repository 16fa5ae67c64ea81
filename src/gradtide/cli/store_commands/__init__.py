"""The commands of a store.

serve.py    a server or the coordinator of a store, on any machine, and their keys
look.py     looks inside a running store
restore.py  a store on this machine that begins with a checkpoint
scale.py    more or fewer servers of a store, or workers of a job, that is at work
chaos.py    the store under fire: real processes that are killed, or simulated ones
"""
