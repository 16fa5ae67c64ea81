"""Keys that are compressed, in the simulator: real tensors, encoded and decoded, and whether all of it counts.

keys.py          what is trained: whole numbers, so that nothing may be lost to rounding
ledger.py        what was pushed, as which bytes, and what workers were given
client.py        a client that encodes as a real one does
bodies.py        from bytes to tensors where they arrive, as a server does it
reference.py     what a block is after each round, by one pair of hands
conservation.py  the checker: what was pushed is in the values, left out, or lost with somebody who died
"""
