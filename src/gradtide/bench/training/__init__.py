"""Workers that train together, beside DDP.

workers.py            gradtide's against DDP, and processes that never synchronise
lightning_trainer.py  Lightning's Trainer with gradtide's strategy beside the same with DDP over Gloo
lightning_worker.py   a worker of one contender of it
reading.py            an epoch of a dataset that takes its time, of which each worker reads its part
reading_worker.py     a worker of one contender of it
turns.py              a training that goes on, in short turns of two kinds, for differences of a percent
watching.py           a training with a reader of the dashboard, and without, in turn
tracing.py            a training with --trace, and without, in turn
"""
