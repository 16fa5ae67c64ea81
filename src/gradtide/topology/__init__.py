"""How devices are wired.

model.py     nodes and links as frozen data
routes.py    the links that a message takes from one node to another
rates.py     how fast the usual wires are
presets.py   topologies known by name
units.py     sizes, rates and times as people write them
wording.py   what errors quote and suggest
validate.py  what makes a topology wrong
formats/     TOML, and the output of nvidia-smi
files.py     a topology by whatever a user calls it: a preset or a file
probe/       links by measurement
"""
