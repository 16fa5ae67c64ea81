"""A whole run, from data to curve, in the order it happens.

models.py           LeNet and an MLP, as in the textbook
digits.py           the embedded data: scikit-learn's handwritten digits, scaled to 28x28
fashion_mnist.py    Fashion-MNIST: where its files may be, and how they get there
idx.py              the IDX format those files are in
source.py           tensors, a Dataset or a DataLoader as one kind of source of batches
rates.py            the learning rate of each step: scaling with the batch, and warm-up
optimizers.py       the optimizer that fit was given, and one like it for every device
settings.py         what `gradtide train` is to train, as data that a worker can be sent
position.py         where a run is, and what it has seen so far
run_state.py        what a run needs to go on bit for bit, as tensors and plain values
keeper.py           its checkpoints: written beside the training, and gone on from
loop.py             fit: the whole run
evaluation.py       loss and accuracy on all devices at once
meter.py            where the time and the bytes of a run went, from its events
record.py           runs/<name>/: metrics.jsonl while it runs, curve.png at its end
together/           the same on several workers
"""

from gradtide.train.evaluation import Evaluation, evaluate
from gradtide.train.keeper import Checkpoints
from gradtide.train.loop import fit
from gradtide.train.position import History

__all__ = ["Checkpoints", "Evaluation", "History", "evaluate", "fit"]
