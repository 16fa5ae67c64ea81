"""What is noticed of the user's program while it trains.

backward.py      when a backward begins and ends, and what each of its gradients counts
steps.py         which optimizers step, also those that nobody told of
guard.py         that somebody changed gradients, parameters or an optimizer's state which ways share
own_gradient.py  that somebody looks at a gradient of which no worker has the whole
alike.py         that all workers have the same parameters
lost_step.py     what was noted of a step that is lost with a worker, until its batches come again
stopwatch.py     how long this worker computes on its part of a batch
uneven.py        loops with more and with fewer batches than other workers'
"""
