"""Texts that describe a topology.

toml_file.py   TOML, read and written
toml_lines.py  where in a TOML text a field is
nvidia_smi.py  the output of `nvidia-smi topo -m`
pcie_tree.py   the PCIe tree that its distances imply
"""
