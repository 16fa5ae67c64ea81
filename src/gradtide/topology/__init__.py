"""How devices are wired.

model.py     nodes and links as frozen data
passing.py   the nodes that pass traffic on: what hangs like a tree, and the core
core.py      the cheapest ways through the core of a fabric
routes.py    the links that a message takes from one node to another
rates.py     how fast the usual wires are
clusters/    clusters by counts: hosts of a kind, and a fabric between them
presets.py   topologies known by name
kinds.py     what is of one kind, by its name
machines.py  machines that are alike, and the tiers of switches between them
units.py     sizes, rates and times as people write them
wording.py   what errors quote and suggest
validate.py  what makes a topology wrong
what_if.py   the same cluster with something missing, slower or faster
formats/     TOML, the output of nvidia-smi, lists of hosts, Slurm
files.py     a topology by whatever a user calls it: a preset or a file
probe/       links by measurement
"""
