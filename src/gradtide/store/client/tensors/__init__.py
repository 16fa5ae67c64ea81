"""A user's tensors, as requests carry them.

values.py      from what a user passes to pieces of memory, and back
packed.py      many small keys in one piece of memory
residuals.py   what compression has left out of what was pushed, to be pushed later
copies.py      what a worker has of keys that come back compressed
compressed.py  pushes and pulls of such keys
"""
