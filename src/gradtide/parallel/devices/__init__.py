"""The devices of one process: a copy of the model on each, in the order a batch meets it.

pool.py         which devices there are; a thread for each
replicas.py     a copy of the model on each device, with its gradients in one flat buffer
nested.py       batches that are more than one tensor
pieces.py       pieces of a batch that are the same samples on one device and on many
batches.py      one batch cut into a part a device
shares.py       parts that follow the devices' measured speed
loss_terms.py   over how many terms a loss is a mean, where that is known
loss_check.py   looks whether a loss is what it is taken for, where it is not
losses.py       torch's losses by name; how those of the parts make up the batch's
randomness.py   a random generator a device, for models that draw numbers in forward
batch_norm.py   batch normalisation over the parts of all devices
shapes.py       what a model or a loss was given, when it can't compute with that
step.py         one step: forward, backward, synchronise, update; alone or with other workers
"""
