"""What fit and evaluate are called with: what other libraries call their arguments, and values of the wrong kind."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gradtide.calling import Words
from gradtide.errors import ConfigError

__all__ = ["EVALUATE", "FIT", "FIT_UNNAMED", "check_kinds", "check_model", "check_unwrapped"]

FIT_UNNAMED = "data is one argument: fit(model, (x, y), validation=(xv, yv)), or fit(model, loader)"
_ONE = "data is one argument, behind the model: (x, y), a Dataset or a DataLoader"
_DEVICES = "say devices=2, devices='cpu' or devices=['cuda:0', 'cuda:1']"
_OF_OPTIMIZERS = "weight_decay momentum betas nesterov"


def _own_optimizer(name: str, named: Mapping[str, object]) -> str:
    """How the optimizer that was asked for takes such an option."""
    asked = named.get("optimizer", "SGD")
    if isinstance(asked, torch.optim.Optimizer):
        return f"give it to the {type(asked).__name__} that you made"
    text = asked if isinstance(asked, str) else getattr(asked, "__name__", "")
    kind = next((one for one in vars(torch.optim) if one.lower() == text.lower()), "")
    if not kind:
        return "put it into your optimizer= function"
    if name not in inspect.signature(getattr(torch.optim, kind)).parameters:
        return f"nor has torch.optim.{kind} such an option: leave it out, or choose another optimizer="
    given = ["lr", *_OF_OPTIMIZERS.split()]
    options = "".join(f", {option}={named[option]!r}" for option in given if option in named)
    return f"say optimizer=lambda parameters: torch.optim.{kind}(parameters{options})"


_SHARED: dict[str, Words] = {
    "loss_fn loss_func loss_function criterion": "it is called loss=",
    "device gpus gpu accelerator n_gpu num_gpus num_devices": _DEVICES,
    "metric eval_metric scoring": "say metrics={'name': function of (outputs, targets)}",
    "amp fp16 bf16 mixed_precision": "say precision='bf16'",
    "x y X inputs targets labels": _ONE,
    "dataset dataloader loader data_loader dataloaders": _ONE,
    "num_workers": "it is an argument of a DataLoader; more processes that run your program: gradtide run --workers 2",
    "workers n_jobs num_processes world_size": "workers are those of gradtide run --workers 2 script.py, or in a "
    "notebook of gradtide.launch(train, workers=2)",
    "bs per_device_train_batch_size per_device_eval_batch_size train_batch_size": "it is called batch_size=",
    "sample_weight sample_weights": "weights go with the data: (x, y, weights)",
}
EVALUATE = _SHARED | {
    "verbose": "evaluate prints nothing; print what it returns",
    "steps": "it goes once over all of the data; give less data",
    "validation validation_data test_data eval_dataset test_loader": _ONE,
}
FIT = _SHARED | {
    "data train_dataset train_loader trainloader train_dataloader train_dataloaders datamodule": _ONE,
    "validation_data val_data valid_data valid eval_data eval_set eval_dataset val_dataset val_loader valid_loader "
    "val_dataloader val_dataloaders": "it is called validation=",
    "validation_split validation_fraction": "cut the data yourself, and give the second part as validation=",
    "max_epochs num_epochs n_epochs num_train_epochs nb_epoch nb_epochs max_iter n_iter epoch": "it is called epochs=",
    "learning_rate learning_rate_init eta step_size": "it is called lr=",
    "optim opt solver": "it is called optimizer=",
    _OF_OPTIMIZERS: _own_optimizer,
    "scheduler lr_scheduler lr_scheduler_type": "say schedule=lambda optimizer: CosineAnnealingLR(optimizer, 10)",
    "gradient_clip_val clip_grad clip_grad_norm max_grad_norm grad_clip": "it is called clip_norm=",
    "accumulate_grad_batches gradient_accumulation_steps grad_accum": "it is called accumulate=",
    "verbose show_progress progress_bar enable_progress_bar": "say progress=True or progress=False",
    "steps_per_epoch max_steps limit_train_batches": "an epoch goes once over the data; give a function that yields "
    "the batches of an epoch, as many as you like",
    "shuffle": "tensors and Datasets are shuffled in every epoch; for another order give a DataLoader",
    "class_weight class_weights": "say loss=nn.CrossEntropyLoss(weight=...)",
    "random_state random_seed manual_seed": "it is called seed=",
    "callback": "it is called callbacks=, and is a list",
    "early_stopping early_stopping_rounds patience": "say callbacks=[gradtide.EarlyStopping(patience=3)]",
    "logger log_dir logging_dir": "say callbacks=[gradtide.TensorBoardLog(folder)], or gradtide.CSVLog(path)",
    "ckpt_path resume_from resume_from_checkpoint initial_epoch": "say resume='folder of a checkpoint'",
    "checkpoint checkpoint_dir output_dir default_root_dir save_dir": "say checkpoints=gradtide.Checkpoints(folder, "
    "every=100)",
}


def check_model(model: Any) -> None:
    if isinstance(model, type):
        raise ConfigError(f"the model is the class {model.__name__}; make one: {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model is a {type(model).__name__}; the first argument is a torch.nn.Module, then the data"
        )


def check_unwrapped(model: Any) -> None:
    if hasattr(model, "sync_state"):
        raise ConfigError("fit: the model is wrapped, for a loop of your own; give fit what it wraps: model.module")


def check_kinds(lr: Any, callbacks: Any, checkpoints: Any, **counts: Any) -> None:
    """`counts`: what has to be whole numbers."""
    for name, value in counts.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ConfigError(f"{name}={value!r}; give a whole number")
    if isinstance(lr, str):
        raise ConfigError(f"lr={lr!r}; give a number")
    if callbacks is not None and not isinstance(callbacks, Iterable):
        raise ConfigError("callbacks= is a list; say callbacks=[...]")
    if checkpoints is not None and not hasattr(checkpoints, "resume"):
        folder = str(checkpoints) if isinstance(checkpoints, str) or hasattr(checkpoints, "__fspath__") else "folder"
        raise ConfigError(f"say checkpoints=gradtide.Checkpoints({folder!r}, every=100)")
