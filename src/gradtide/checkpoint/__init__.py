"""Checkpoints on disk or in an object store: files of tensors, and one manifest that makes them a checkpoint.

places.py        a folder on this machine or at any fsspec address: files that are there whole or not at all
direct.py        a large file past the page cache
entries.py       the lines of a manifest
tensor_file.py   the safetensors format, written as a stream and read piece by piece
manifest.py      what a checkpoint consists of; written last, so it is the commit
shelf.py         the checkpoints of one job in one place: the newest, all of them, the last n
"""
