"""The model and the optimizer that a user has wrapped: what its devices know of them, and that this is still so."""

from typing import Any

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.snapshot import ModelSnapshot

__all__ = ["WrappedModel"]


class WrappedModel:
    """As they were when the model was split, or given back."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._trained = self._what_is_trained()
        self.remember()

    def remember(self) -> None:
        """All but what is trained is meant to be as it is now."""
        self._snapshot = ModelSnapshot(self._model)
        self._states = list(self._optimizer.state.values())
        self.remember_modes()

    def remember_modes(self) -> None:
        self._modes = [module.training for module in self._model.modules()]

    def refuse_changes(self) -> None:
        """Of what the devices have copies of: modules, their modes and options, hooks and tensors."""
        if told := self._snapshot.change():
            raise ConfigError(
                f"since the model was split {told}, and its devices don't know; do so before the first step, or wrap "
                "the model anew with the split model's state_dict()"
            )
        if self._modes != [module.training for module in self._model.modules()]:
            raise ConfigError(
                "a module was put into training or evaluation since the model was split, and its devices don't know; "
                "call train() and eval() of the split model, or do so before the first step"
            )

    def refuse_other_training(self) -> None:
        """The devices hold what was trained, by which groups, and the optimizer's state."""
        states = list(self._optimizer.state.values())
        if [id(state) for state in states] != [id(state) for state in self._states]:
            raise ConfigError(
                "the optimizer was given a state since the model was split, and its devices don't know; give it to "
                "load_optimizer_state_dict() of the split model"
            )
        if self._what_is_trained() != self._trained:
            raise ConfigError(
                "a parameter was frozen, unfrozen or given to the optimizer since the model was split; do so before "
                "the first step, or wrap the model anew with its state_dict()"
            )

    def _what_is_trained(self) -> list[Any]:
        asked: list[Any] = [parameter.requires_grad for parameter in self._model.parameters()]
        return asked + [[id(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]
