"""Compressed gradients over collectives: what can't be added up compressed goes from all to all, and is decoded there.

state.py      what outlives a way: what was asked for, what was left out, how many steps were taken
refuse.py     what compression does not go with
predict.py    how many bytes a step moves, how long that should take, and what "auto" makes of it
leaders.py    one worker of each host, as a group of their own
gathered.py   a bucket whose gradients are gathered, decoded and added in rank order, on every rank alike
loads.py      which parameters were given other values, so that nothing left out at the old ones comes later
factored.py   a bucket whose gradients are sums of thin matrices
way.py        all-reduce's way, with buckets that are compressed
"""

from gradtide.sync.compressed.state import Compression
from gradtide.sync.compressed.way import CompressedReduce, LeftToOne

__all__ = ["CompressedReduce", "Compression", "LeftToOne"]
