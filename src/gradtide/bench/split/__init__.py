"""Models that are split, beside torch's pipelines and beside what was predicted.

cases.py       the models, and where each is cut
by_hand.py     what a user of torch.distributed.pipelining writes, and what a user of gradtide does
peer.py        one process of a contender
pipelines.py   gradtide against torch's 1F1B over Gloo and over gradtide, the same cut, interleaved
predictions.py step times predicted beside step times measured, over models and layouts
predicting_peer.py  one process of that
forecast.py    what is known before: layouts, the wire, what devices do beside their layers
"""
