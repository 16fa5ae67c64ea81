"""What sending less is worth between two hosts that a slow wire joins, and what sharing the work fairly is.

speed.py         throughput with and without local steps, beside other libraries' and the prediction
worker.py        a worker of one contender of it
rivals.py        ... of torchft's and accelerate's
smaller.py       smaller messages: bytes, codecs' speed, and a step beside its ideal and torch's hooks
smaller_worker.py  a worker of all contenders of it
contenders.py    ... who they are
hooks.py         ... torch's own
codec_speed.py   what codecs should send, and how fast they are on one core
accuracy.py      Fashion-MNIST after equal samples, over several seeds: differences from training together
learner.py       a worker of that
pair.py          two workers on two hosts, and servers beside them
paired.py        the mean of paired differences and its interval
pictures.py      accuracy over bytes and over time
balance.py       two workers of which one is slow, and two that are alike, with and without balance
balance_peer.py  a worker of one contender of it
"""
