"""What a user adds to `fit`, in the order a step and then an epoch meets it.

batches.py     what a user calls a batch, as inputs and targets
weights.py     a loss whose samples count by weights of their own
rates.py       the learning rate of each step: scaling with the batch, and warm-up
schedules.py   a scheduler of torch's, brought to where the run is
metrics.py     what else is measured on the validation data, of all devices and workers at once
outputs.py     what parts of a batch gave, as one, in the data's order
callbacks.py   functions of events: what they are told, how they stop a run, and whose fault an error is
best.py        EarlyStopping and BestModel
loggers.py     a line an epoch: in a CSV file, for TensorBoard
progress.py    how far a run is: a bar, or a line every 10 seconds
table.py       a history as a table and as a picture
"""
