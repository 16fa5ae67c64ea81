"""One host: parameters in shared memory, each rank reduces and updates its share.

storages.py  other memory under the storages of parameters: every alias of them follows
flat.py      parameters laid out in one flat space, and who owns which share of it
pieces.py    an optimizer that steps a rank's share, a cache-sized piece at a time
way.py       the way of a gradient to who owns it, and of parameters back
"""
