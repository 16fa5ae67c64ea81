"""A whole run, from data to curve, in the order it happens.

models/             LeNet and MLPs as in the textbook, AlexNet, a small transformer
digits.py           the embedded data: scikit-learn's handwritten digits, scaled to 28x28
datasets/           Fashion-MNIST, and the format of its files
arguments.py        what fit and evaluate are called with: names of other libraries, values of the wrong kind
source.py           tensors, arrays, a Dataset, a DataLoader or a generator as one kind of source of batches
steering/           what a user adds: metrics, callbacks, schedules, sample weights, progress
optimizers.py       the optimizer that fit was given, and one like it for every device
settings.py         what `gradtide train` is to train, as data that a worker can be sent; what a run can't be
position.py         where a run is, and what it has seen so far
run_state.py        what a run needs to go on bit for bit, as tensors and plain values
keeper.py           its checkpoints: written beside the training, and gone on from
evaluation.py       loss, accuracy, metrics and predictions on all devices and workers at once
run.py              one run: its steps and epochs
loop.py             fit: the whole run
record.py           runs/<name>/: metrics.jsonl while it runs, curve.png at its end
together/           the same on several workers
"""

from gradtide.train.evaluation import Evaluation, evaluate, predict
from gradtide.train.keeper import Checkpoints
from gradtide.train.loop import fit
from gradtide.train.position import History
from gradtide.train.steering.best import BestModel, EarlyStopping
from gradtide.train.steering.callbacks import EpochEnd, FitEnd
from gradtide.train.steering.loggers import CSVLog, TensorBoardLog
from gradtide.train.steering.metrics import OverAll

__all__ = [
    "BestModel",
    "CSVLog",
    "Checkpoints",
    "EarlyStopping",
    "EpochEnd",
    "Evaluation",
    "FitEnd",
    "History",
    "OverAll",
    "TensorBoardLog",
    "evaluate",
    "fit",
    "predict",
]
