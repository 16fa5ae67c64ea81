"""A stage cut into the shards that devices run.

exactness.py       what would give another result when it is split, refused by name
ways.py            how the units of a stage are cut: as asked for, or by default
placing.py         which exchanges that needs, and where
tensors.py         a shard's own parameters and buffers
dropout.py         dropout whose mask is the same under every layout
shared_norm.py     batch norm over all copies of a stage
local_modules.py   a shard's own modules
local.py           what one device holds and runs of a stage
exchanges.py       what an exchange gives each shard, and the bytes it takes
stage.py           a stage as one of its shards runs it
"""
