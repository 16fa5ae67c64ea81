"""Runs a verified schedule on real tensors: the same order of sums, so the same bits, everywhere.

choose.py       from what a user calls a strategy to a schedule
programme.py    from a schedule to what one process has to do
execute.py      does it: on devices of one process, over memory, over messages
in_process.py   between the devices of one process
runner.py       for a group's ranks
torch_wire.py   over torch.distributed's own process groups, for who asks for it
"""
