"""What sending less is worth between two hosts that a slow wire joins, and what sharing the work fairly is.

speed.py         throughput with and without local steps, beside other libraries' and the prediction
worker.py        a worker of one contender of it
rivals.py        ... of torchft's and accelerate's
accuracy.py      Fashion-MNIST after equal samples, over several seeds: differences from training together
learner.py       a worker of that
paired.py        the mean of paired differences and its interval
pictures.py      accuracy over bytes and over time
balance.py       two workers of which one is slow, and two that are alike, with and without balance
balance_peer.py  a worker of one contender of it
"""
