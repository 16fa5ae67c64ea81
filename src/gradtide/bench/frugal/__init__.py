"""What it saves to share the work fairly.

balance.py       two workers of which one is slow, and two that are alike, with and without balance
balance_peer.py  a worker of one contender of it
"""
