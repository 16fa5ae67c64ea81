"""How devices are wired.

model.py      nodes and links as frozen data
routes.py     the way a message takes
presets.py    topologies known by name
"""
