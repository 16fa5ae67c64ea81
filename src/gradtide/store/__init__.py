"""A key-value store over many servers whose update rule you choose: push adds a contribution, pull reads.

messages.py      every request, reply and word of the coordinator, as small structs; payloads stay raw bytes
placement.py     which shard a block belongs to, and which server holds a shard
"""
