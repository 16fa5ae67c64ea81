"""Moves of random programs that change a model while it trains."""

import torch
from random_batches import WIDTH
from random_layers import make_optimizers
from torch import nn
from torch.nn.utils import parametrizations

NOT_YET: set[str] = set()  # names of moves that are not followed yet: none of them is drawn
NOT_OVER_SERVERS = {"replace layer", "new optimizer", "wrap again", "weight norm"}
MOVES = ("replace layer", "new optimizer", "wrap again", "keep alias", "average", "reorder groups", "weight norm")


def can_be_drawn():
    """Of those that come after a step."""
    return [move for move in MOVES if move not in NOT_YET]


class Moves:
    """What a program (`random_programs.Program`) does with its model besides training it."""

    aliases: tuple = ()
    averaged: tuple = ()
    repointed = False
    by_hand = False  # whether it has an optimizer that the wrapper was not given

    def move(self, action):
        number = action.get("layer", 0) % len(self.net.layers)
        match action["do"]:
            case "replace layer" if self._is_plain(number):
                old, self.net.layers[number] = self.net.layers[number], _fresh(number)
                self._repoint(old.parameters(), self.net.layers[number].parameters())
            case "new optimizer" if "scheduler" not in self.case and "hooks" not in self.case:
                self.optimizers, self.by_hand = self._anew(), True
            case "wrap again" if "scheduler" not in self.case and "hooks" not in self.case:
                self.optimizers = self._anew()
                self.wrap()
            case "keep alias":
                kept = [p.detach() for p in self.net.parameters()]
                self.aliases = (*self.aliases, *kept, *self.model.state_dict().values())
            case "average":
                self.averaged = [(p.detach().clone(), p.detach()) for p in self.net.parameters()]
            case "reorder groups":
                for optimizer in self.optimizers:
                    optimizer.param_groups.reverse()
            case "weight norm" if self._is_plain(number) and not hasattr(self.net.layers[number], "parametrizations"):
                layer = self.net.layers[number]
                old = layer.weight
                parametrizations.weight_norm(layer)
                self._repoint([old], layer.parametrizations.weight.parameters())

    def after_every_step(self):
        for mean, value in self.averaged:
            mean.lerp_(value, 0.25)

    def see_aliases(self):
        self.see("aliases", *self.aliases, *(mean for mean, _ in self.averaged))

    def _is_plain(self, number):
        """Nobody else has its parameters, and it is trained."""
        spec = self.net.specs[number] if number < len(self.net.specs) else {}
        tied = number == 0 and any(other.get("tied") for other in self.net.specs)
        layer = self.net.layers[number]
        return not (spec or tied) and all(p.requires_grad for p in layer.parameters())

    def _repoint(self, old, new):
        """Groups have the new parameters where they had the old, whose state stays: no `state_dict` is made of that."""
        self.repointed = True
        gone, coming = {id(p) for p in old}, list(new)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if gone & {id(p) for p in group["params"]}:
                    group["params"] = [p for p in group["params"] if id(p) not in gone] + coming
                    coming = []

    def _anew(self):
        return make_optimizers(self.case["optimizers"], self.net)


def _fresh(number):
    with torch.random.fork_rng():
        torch.manual_seed(100 + number)
        return nn.Linear(WIDTH, WIDTH).double()
