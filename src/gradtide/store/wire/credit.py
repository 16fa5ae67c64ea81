"""What may be on its way between a client and a server: bounds that both sides must agree on.

Bytes: whoever connects to a server may send it CREDIT_BYTES of values. The server gives back what it has handed over,
CREDIT_STEP_BYTES at a time (granting.py), and the connection holds back what there is no credit for. A session asks for
no more than that by itself: it has at most CREDIT_BYTES of values on their way to a server that has not said anything
about them (sending.py).

Requests: a shard keeps the last ANSWERS_KEPT answers for each client, to repeat them (filter.py). So a client never has
more unanswered pushes on a shard than that (sending.py).
"""

__all__ = ["ANSWERS_KEPT", "CREDIT_BYTES", "CREDIT_STEP_BYTES"]

CREDIT_BYTES = 64 << 20
CREDIT_STEP_BYTES = CREDIT_BYTES // 4
ANSWERS_KEPT = 256
