"""Adds tensors up across devices.

in_process.py    all_reduce between the devices of one process: root, host, sharded
"""

from gradtide.collective.in_process import STRATEGIES, all_reduce, check_strategy

__all__ = ["STRATEGIES", "all_reduce", "check_strategy"]
