"""What a push does to a value.

arithmetic.py        what a shard needs of numbers, as a protocol
tensors.py           tensors as raw memory, and their dtypes by name
reductions.py        semirings, their laws, means
fused.py             where torch's fused kernels do what its plain ones do
delayed_nesterov.py  an outer optimizer for changes that are pushed one at a time
codecs.py            how the blocks of a compressed key are encoded
published.py         what workers have of a block that goes back compressed
updates.py           update rules on tensors: reductions and torch.optim
consistency.py       how async, bsp and bounded:k are written
"""
