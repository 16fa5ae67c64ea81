"""How devices are wired.

model.py       nodes and links as frozen data
routes.py      the links that a message takes from one node to another
rates.py       how fast the usual wires are
presets.py     topologies known by name
units.py       sizes, rates and times as people write them
validate.py    what makes a topology wrong
wording.py     what errors quote and suggest
toml_file.py   a topology as TOML, read and written
toml_lines.py  where in a TOML text a field is
nvidia_smi.py  `nvidia-smi topo -m` text as a topology
pcie_tree.py   the PCIe tree that its distances imply
files.py       a topology by whatever a user calls it: a preset or a file
probe.py       measures this machine's links between processes
"""
