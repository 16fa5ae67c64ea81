"""The models that gradtide brings along, for its commands, benchmarks, documentation and tests.

small.py        LeNet and MLPs, as in the textbook
towers.py       AlexNet as it was, in two towers; narrower, and for smaller images too
decoder.py      a small decoder with tied weights, skips and dropout
own.py          a user's own, by where its function is
by_name.py      those that `gradtide train --model` takes
"""

from gradtide.train.models.by_name import MODELS, build_model, check_model
from gradtide.train.models.decoder import transformer
from gradtide.train.models.small import deep, lenet, mlp
from gradtide.train.models.towers import alexnet

__all__ = ["MODELS", "alexnet", "build_model", "check_model", "deep", "lenet", "mlp", "transformer"]
