"""Where the batches of many workers come from, and what of them a worker reads.

loaders.py      a DataLoader in an order that all workers agree on, or any iterable, compared
order.py        the order of a DataLoader's batches, which worker 0's sampler decides
eligible.py     whether a worker may read its part of a batch alone
own_part.py     where a worker's part of a batch begins and ends
part_batch.py   a batch of which a worker has read its part
part_reader.py  a DataLoader's batches, of which only this worker's part is read
replay.py       a DataLoader with another sampler
draws.py        random numbers that are drawn while a worker reads
"""
