"""What goes between the store's processes. Pure but for the last: bytes and places, no socket and no tensor.

messages/      every request, reply and word of the coordinator, as small structs; values stay raw bytes
placement.py   which shard a block belongs to, and which server holds a shard
layouts.py     the pieces of a set of keys, by shard and by server
rights.py      who may say what, by the role that was proven
credit.py      how much may be on its way, and how much is remembered of it: what both ends must agree on
message_templates.py   messages that are like the one before but for a number or two
coordinators.py  where the coordinators listen, and which of them to ask next
"""
