"""Descriptions of topologies, read into the same frozen data.

toml_file.py     our own, read and written: nodes and links one by one
toml_cluster.py  our own by counts: hosts of a kind, a fabric, overrides
toml_fields.py   the fields of its tables, each checked
toml_lines.py    where in it a field is
nvidia_smi.py    what `nvidia-smi topo -m` prints
pcie_tree.py     the tree of switches and CPUs that its distances mean
host_texts.py    a list of hosts, each with such a text
slurm.py         Slurm's topology.conf
host_names.py    names of hosts as Slurm writes them: node[00-15]
"""
