"""Shards to files and back, on the server's side; the client's side is client/checkpointing.py.

cutter.py       a server's part in checkpoints: copies its shards at the cut, and answers when they are written
file_writing.py writes these copies to files, in a thread
copies.py       memory for these copies, kept from one checkpoint to the next
shard_file.py   shards as parts of a checkpoint's files, and back
loading.py      a server's shards from a checkpoint
export.py       a checkpoint as one plain file of tensors, and back
other_formats.py  ... as a folder that Hugging Face's libraries or torch's DCP read, and back
"""
