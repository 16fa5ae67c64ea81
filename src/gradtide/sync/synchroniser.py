"""Keeps a model alike on all workers: along one way, and along the next one when workers come, go or die."""

import contextlib
import copy
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradtide.calling import users_level
from gradtide.compress import AUTO
from gradtide.errors import CommunicationError, ConfigError, Mismatch, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsReady, ParametersUpdated
from gradtide.processes.malloc import keep_freed_memory
from gradtide.sync.alone import Alone
from gradtide.sync.choose import (
    ON_TRIAL,
    TRIAL_STEPS,
    WRAPPING,
    Wishes,
    can_be_shared,
    check_one_optimizer,
    choose_way,
    open_group,
)
from gradtide.sync.compressed import CompressedReduce, LeftToOne
from gradtide.sync.compressed.loads import LoadedStates
from gradtide.sync.compressed.state import holds_something
from gradtide.sync.job import Job
from gradtide.sync.local import LocalOverServers, LocalSteps, TogetherFirst
from gradtide.sync.servers import Servers, ServersWay
from gradtide.sync.shared.way import SharedParameters, Unshare
from gradtide.sync.state import LastStep, check_alike
from gradtide.sync.trained import Trained, find_trained, needs_closure
from gradtide.sync.watching.alike import AlikeNet, look_whether_alike
from gradtide.sync.watching.backward import BackwardHooks
from gradtide.sync.watching.guard import Trial
from gradtide.sync.watching.lost_step import KeptValues, LostStep, StepBegin
from gradtide.sync.watching.own_gradient import OwnGradients
from gradtide.sync.watching.steps import StepHooks
from gradtide.sync.watching.uneven import UnevenLoops
from gradtide.sync.ways import EveryStep, Way

__all__ = ["Synchroniser"]

T = TypeVar("T")
_TOGETHER = (
    "all workers call step, evaluate, mean_over_workers and the like, not only `if gradtide.is_main():`; for loops of "
    "different lengths, share out the data with gradtide.shard(...), or train in model.join()"
)
OverServers = ServersWay | LocalOverServers | TogetherFirst


class Synchroniser:
    """One worker's end of the training. All workers make it together, and begin with what worker 0 has."""

    def __init__(self, trained: Trained, job: Job, wishes: Wishes, emit: Emit) -> None:
        keep_freed_memory()
        self._trained, self._job, self._wishes, self._emit = trained, job, wishes, job.watched(emit)
        self._given_optimizers = trained.optimizers  # those that model.step() steps
        self.way: Way = Alone(self._emit)
        self._closed = False  # whether the way has given back what it held
        self._ended = ""  # why this one trains no more
        self._have_others_let_go()
        if any(isinstance(module, _BatchNorm) for module in trained.module.modules()):
            job.least_part = max(job.least_part, 2)
        self._synchronising, self._stepping, self._uneven = True, False, UnevenLoops(job)
        self._lost: LostStep | None = None  # until its batches come again
        self._tried: LostStep | None = None  # until it is taken again
        self._step_begin: StepBegin | None = None  # of the step that is under way
        self._unedited: tuple[int, KeptValues] | None = None  # after how many batches such a step began, and with what
        self._weighed: float | None = None  # what the user said that this worker's loss counts
        self._said = 0.0, 0.0  # the same as it was said, for another way
        self._rounds, self._clipped = 0, 0  # synchronisations so far; the one whose gradient was clipped
        self._stepped = dict.fromkeys(map(id, trained.optimizers), 0)  # the round of each optimizer's last step
        self._gradients_left: dict[
            int, tuple[int, int]
        ] = {}  # of parameters that the model had once, as they were then
        self._backwards, self._warned = 0, False  # since the last step
        self._kept_some = False  # whether gradients may have stayed here since the last synchronisation (no_sync)
        self._given, self._given_half = set[int](), set[int]()  # gradients that the way has; those with more in no_sync
        self._failed: CommunicationError | None = None  # a peer died in backward; the step will see to it
        self._may_share = wishes.sync == "auto" and wishes.share_parameters is not False
        self._may_share &= wishes.compression is None or wishes.compression.settings.codec == AUTO
        self._on_trial = self._may_share and wishes.trial and wishes.share_parameters is None
        self._trial, self._unproven = Trial(trained) if self._on_trial else None, ON_TRIAL if self._on_trial else ""
        self.way = self._begin()
        job.nobody_waits = _is_async(wishes.sync)
        self._hooks, self._editing, self._loads = self._watch(), False, self._watch_loads()
        self._step_hooks = StepHooks(self._before_optimizer, self._after_optimizer, self._before_stranger)
        self._step_hooks.know(trained.optimizers)
        self._job.trainings.append(weakref.ref(self))
        shared = isinstance(self.way, SharedParameters)  # which have what was told in memory of all
        self._told = None if job.arrived or shared else LastStep(trained)

    def _purpose(self, text: str) -> contextlib.AbstractContextManager[None]:
        """What the user will read if other workers do something else meanwhile."""
        group = self._job.group if self.way.is_collective else None
        return contextlib.nullcontext() if group is None else group.purpose(text)

    def _begin(self) -> Way:
        """With those who are there; who has just come, and finds one dying, asks anew like one who has just come."""
        job, elastic = self._job, self._job.elastic
        if elastic is None or job.apart or job.batches or job.trainings:
            return self._choose_way()
        built, last = KeptValues(self._trained), LastStep(self._trained)
        while True:
            try:
                return self._choose_way()
            except (PeerLost, PeerTimeout):
                if elastic.generation == 0:
                    raise
                job.leave()
                last.restore()
                built.put_back()

    def _choose_way(self) -> Way:
        """As worker 0 does: one that has just come knows less of how the program goes."""
        self._net = AlikeNet()
        if self._wishes.trial and not _is_over_servers(self._wishes.sync) and self._job.group is not None:
            self._job.group.advise(_TOGETHER)
        if self._may_share and self._job.group is not None:
            trial = self._trial
            known = torch.tensor([not self._unproven, trial is None, trial.steps if trial else 0, self._on_trial])
            with self._job.group.purpose(WRAPPING):
                self._job.group.broadcast(known)
            proven, over, steps, self._on_trial = bool(known[0]), bool(known[1]), int(known[2]), bool(known[3])
            if proven or (over and self._unproven in ("", ON_TRIAL)):  # else this worker knows why
                self._unproven = "" if proven else "before this worker came, the program edited gradients or parameters"
            way = choose_way(self._trained, self._job, self._wishes, self._emit, unproven=self._unproven)
            self._trial = None if over else Trial(self._trained, steps)  # with the values that all begin with
            return way
        return choose_way(self._trained, self._job, self._wishes, self._emit, unproven=self._unproven)

    def _watch(self) -> BackwardHooks:
        told = self._on_gradient, self._on_end, self._on_adding, self._refuse_within_backward
        self._covers = OwnGradients(self._trained.parameters, self._get_whole_gradients)
        return BackwardHooks(self._trained.parameters, self._weight_now, *told)

    def _watch_loads(self) -> LoadedStates | None:
        """Where something is left out, to be sent later."""
        way, compression = self.way, self._wishes.compression
        if compression is None or not compression.feedback or isinstance(way, TogetherFirst) or way.servers_step:
            return None
        left = way.smaller if isinstance(way, ServersWay | LocalOverServers) else compression
        return LoadedStates(self._trained, left, self._check_load, self._loaded)

    def _check_load(self) -> None:
        """`load_state_dict` of what is wrapped, or of a part of it; the wrapper's own is in `edit`."""
        if isinstance(self.way, LocalOverServers):
            self.way.edit()  # which says why not
        if not self._editing and isinstance(self.way, LocalSteps) and self.way.apart:
            raise ConfigError(
                f"each worker has taken {self.way.apart} steps by itself since they last met; call load_state_dict of "
                "the wrapped model, which makes all meet first, or model.meet() before"
            )

    def _loaded(self, names: list[str]) -> None:
        if not self._editing and isinstance(self.way, LocalSteps):
            self.way.begin_with(names)

    # --- forward and backward ---

    def before_forward(self) -> None:
        """What the program changed since the last step is taken up now: a layer unfrozen or replaced, a group added."""
        self._check_not_ended()
        if self._step_begin is None and not self._job.behind:  # in a loop without `shard`
            self._job.admit()
            self._job.arrive()
        self._step_hooks.forget_failed()
        if self._hooks.unfinished and self._synchronising:
            raise ConfigError(
                "the last backward on this worker ended in an error, when some of its gradients were with the others "
                "already; end this worker, or catch errors before backward"
            )
        if self._weighed is not None:
            self._check_weighed()
        if self._trained.is_outdated() and not self._job.undone:
            self.follow()
        if self._step_begin is None and self._can_go_on:
            self._step_begin = StepBegin(self._trained)

    def watch(self, outputs: Any) -> None:
        """What forward returned."""
        self._hooks.watch(outputs)

    def _on_adding(self, index: int, held: Tensor | None) -> None:
        if self._wishes.compression is not None:
            over_servers = isinstance(self.way, ServersWay)
            self._wishes.compression.begins(self._trained.names[index], held, over_servers=over_servers)

    def _on_gradient(self, index: int, weight: float) -> None:
        if self._job.undone:
            return
        if self._synchronising:
            self._given.add(index)
            self._given_half.discard(index)
            self.way.ready(index, weight)
        elif index in self._given:
            self._given_half.add(index)

    def _on_end(self, added: bool) -> None:
        if self._job.undone:
            return
        if self._wishes.trial:
            self.way.saw()
        if self._synchronising:
            self._end_backward(added)
        stays = self.way.one_weight and self._hooks.accumulating
        if self._wishes.trial and not stays:  # fit's stays: other devices may have used what this one did not
            self._weighed = None

    def _end_backward(self, added: bool) -> None:
        """`added`: to gradients that were there; they may as well have been zeroed, as a GAN does with its critic's."""
        self._check_parts()
        self._backwards += 1
        if self._backwards > 1 and added and not self._warned:
            self._warned = True
            warnings.warn(
                "a second backward since the last step: its gradients are added, as in plain PyTorch; if step() was "
                "forgotten, call it; if this is meant, put all but the last backward into no_sync(), which is faster",
                stacklevel=users_level(),
            )
        if self.way.workers_step:
            self._synchronise(late=False)
        elif self._wishes.trial and isinstance(self.way, SharedParameters):
            self._covers.cover()

    def _synchronise(self, *, late: bool) -> None:
        self._emit(GradientsReady())
        try:
            self.way.synchronise(self._hooks.weights(), late)
            self.way.share_buffers(self._uneven.first_going)
            self._look_in_turn()
        except CommunicationError as error:
            if not self._can_go_on:
                raise
            self._failed = error  # the step was never taken: it is the step that begins again
        self._rounds += 1
        self._forget_given()
        self._hooks.synchronised(self._equal_part())
        if self._wishes.compression is not None and isinstance(self.way, EveryStep):
            self._wishes.compression.synchronised(self._trained)
        if self._trial is not None:
            self._trial.synchronised()

    # --- whether all are alike ---

    def _look_in_turn(self) -> None:
        """Once a round, where each ends with the same parameters on all."""
        if isinstance(self.way, EveryStep) and self._net.is_due(asked=self.way.asked_to_look):
            self.look()

    def look(self, *, ends: bool = False) -> None:
        """All workers compare what trains now, together."""
        group = self._job.group if self.way.is_collective else None
        if group is not None and not self.way.apart:
            look_whether_alike(self._trained, self.way, group, ends=ends)

    def _look_at_the_end(self) -> None:
        """A worker that left out a step is told so when it leaves. Not on the way out of an error, nor for somebody who
        has gone already, or dies meanwhile: all steps are over, so nobody needs to go on."""
        if sys.exc_info()[0] is not None:
            return
        try:
            self.look(ends=True)
        except Mismatch as error:
            raise ConfigError(
                f"this worker ends its training, and another is in a step still: one of them left one out ({error})"
            ) from None
        except (PeerLost, PeerTimeout):
            return

    def ask_to_look(self) -> None:
        """This worker evaluates, or keeps the model: all look soon."""
        self.way.ask_to_look()

    def _equal_part(self) -> float:
        """What each of those counts who took a step together, in what all of them have then."""
        if isinstance(self.way, LocalSteps) and not self.way.together and self.way.inside is not None:
            return 1.0 / self.way.inside.size
        return self.way.measure(1.0 / self._job.size)

    def _forget_given(self) -> None:
        self._kept_some = False
        self._given.clear()
        self._given_half.clear()

    def weigh(self, terms: float) -> None:
        """Before a backward: this worker's loss is a mean over so many terms; it counts as its part of all workers'."""
        try:
            terms = float(terms)
        except (TypeError, ValueError):
            terms = math.nan
        if not 0 <= terms < math.inf:
            raise ConfigError(f"weigh({terms:g}): a mean is over 0 terms or more; give their number, as (y >= 0).sum()")
        if self._job.undone:
            return
        self._check_weighed()
        counts = self._job.weight  # nothing if this worker has no sample, but one that stands in for it
        self._said = terms if counts else 0.0, counts
        self._weighed = self.way.weigh(*self._said)

    def _check_weighed(self) -> None:
        if self.way.one_weight and self._hooks.holding:
            raise ConfigError(
                "over servers a step has one weight: weigh() can't differ between the backwards of a step; sum the "
                "losses and call backward once, or train without servers"
            )

    def _weight_now(self) -> float:
        if self._uneven.joining and self.way.is_collective:
            return self.way.measure(self._uneven.weight(self.way))
        return self.way.measure(self._job.weight) if self._weighed is None else self._weighed

    # --- a step ---

    def step(self, optimizers: Sequence[torch.optim.Optimizer] | None = None) -> bool:
        """Synchronises what has not left yet, updates every worker's parameters alike, and clears the gradients.
        Returns False if the step was lost with a worker."""
        finished = False
        self._check_not_ended()
        if self._closed:
            raise ConfigError(
                "close() has ended the training of this wrapper; wrap the model again, or step its optimizer alone"
            )
        if self._job.undone:  # what is left of this pass of the loop does nothing: its batches come again
            return False
        self._check_step_a_batch()
        tried, self._tried = self._tried, None
        if tried is not None:
            tried.check_again()
        if not self._wishes.trial:  # fit's backwards are pieces of one part
            self.way.saw()
        optimizers = self._given_optimizers if optimizers is None else optimizers
        self._check_steps_something(optimizers)
        try:
            self._take_step(optimizers)
            self._count_step(optimizers)
            finished = self._finish_step()
            self._job.done += 1
            self._end_step()
            self._end_round()
        except CommunicationError as error:
            if not self._can_go_on:
                raise
            self._end_step()
            self._go_on(error, finished)
            finished = finished or (self._job.stayed and self._finish_step())
        self._emit(ParametersUpdated())
        return not self._job.undone and (finished or not isinstance(self.way, EveryStep))  # local steps stay

    def _finish_step(self) -> bool:
        self._job.stepped, self._step_begin, self._unedited = self._job.batches, None, None
        return True

    def _end_round(self) -> None:
        """Whoever has come joins when the program's loop is done with the batch: until then nobody could tell it where
        the others are."""
        if self._is_called():
            self._job.called = True
        else:
            self._share_if_proven()

    def _check_step_a_batch(self) -> None:
        """Only what was a step can be taken again, and who comes later can only begin after one."""
        job = self._job
        if (self._takes_again or job.by_rounds) and job.shares and job.stepped == job.batches:
            raise ConfigError(
                "a second step with one batch of gradtide.shard: in a job that may lose or gain workers a batch is in "
                "one step, which can be taken again; sum the losses, or leave --min-workers and the like out"
            )

    def _count_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Where there are several optimizers, a step is over with that of the last one. (Where one of them came later,
        of the last one that steps: the program may have left off with those before.)"""
        of_all = self._trained.optimizers
        if any(not any(one is given for given in self._given_optimizers) for one in of_all):
            of_all = [one for one in of_all if self._stepped[id(one)] >= self._rounds - 1] or of_all
        if any(optimizer is of_all[-1] for optimizer in optimizers):
            part = self._equal_part()
            self.way.stepped()
            if self._equal_part() != part:  # what was added up by all counts as each worker's own from now on
                self._hooks.synchronised(self._equal_part())

    def _take_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            if not self._trained.has(optimizer):
                self._follow_beside(optimizer)
        if not self.way.workers_step and self._trained.is_rearranged():
            self.follow()
        if not self.way.workers_step:
            self._give_and_step()
        if self.way.workers_step:  # now, if not before
            self._let_step(optimizers)

    def _give_and_step(self) -> None:
        """Where others step too: servers, or each worker its share."""
        weights = self._hooks.weights()
        self._check_left_gradients()
        self._covers.uncover()
        if self._kept_some:
            self._check_parts()
            for index in self._given_half.intersection(self._hooks.own_gradients()):
                self.way.ready(index, weights[index])
        self._emit(GradientsReady())
        if isinstance(self.way, SharedParameters):
            if why := self.way.begin_step(weights):
                self._unshare(why)
                return
            if self.way.nobody_gave:
                self._check_backward()
        elif self._job.size == 1 and not self._backwards and not self._kept_some:
            self._check_backward()
        self._look_in_turn()
        if self.way.is_collective:  # before the step: should it fail, that never was
            self.way.share_buffers(self._uneven.first_going)
        self.way.step(weights)
        self._rounds += 1
        self._stepped = dict.fromkeys(self._stepped, self._rounds)
        self._forget_given()
        self._hooks.synchronised(self._equal_part())
        if not self.way.is_collective:
            self.way.share_buffers(self._uneven.first_going)
        # What a learning-rate scheduler looks at before it warns that the optimizer has not stepped yet.
        self._trained.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _let_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Where each worker steps with the whole gradient."""
        if self._trained.closures and any(map(needs_closure, optimizers)):
            raise ConfigError("this optimizer computes the loss anew within its step; call optimizer.step(closure)")
        idle = self._synchronise_for(optimizers)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        if idle and (self._job.size == 1 or (self.way.is_collective and not isinstance(self.way, LocalSteps))):
            self._check_backward()
        self._stepping = True
        try:
            for optimizer in optimizers:
                optimizer.step()
        finally:
            self._stepping = False
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        if not self._wishes.trial:  # fit's gradients are those of the last step alone
            for parameter in self._trained.parameters:
                parameter.grad = None

    def _synchronise_for(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """A worker whose backward reached no parameter, or was in no_sync, gives its part now. Returns whether this
        worker has seen no backward since these optimizers stepped."""
        kept = self._kept_some
        late = kept or self._rounds == max(self._stepped[id(optimizer)] for optimizer in optimizers)
        if late:
            if self._trained.is_outdated():
                self.follow()
            self._check_parts()
            self._synchronise(late=True)
        return late and not kept

    def _check_backward(self) -> None:
        """This worker has seen no backward since the last step; with others, they have exchanged their gradients now.
        If nobody has any, all of them are here. (A worker that weighs its part may leave out what has no terms.)"""
        parameters = self._trained.parameters
        none = all(parameter.grad is None for parameter in parameters) and any(p.requires_grad for p in parameters)
        if none and self._wishes.trial and self._weighed is None:
            raise ConfigError(
                "step() without a backward: no worker has a gradient since the last step; call loss.backward() before "
                "each step(), or leave this one out"
            )

    def _check_parts(self) -> None:
        """What stayed here until now must be as backward left it: an edit of a part is not one of the whole."""
        if self._wishes.trial and self._job.size > 1:
            self._hooks.check_unchanged(self._trained.names)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped[id(optimizer)] = self._rounds
        if self._wishes.compression is not None:
            self._wishes.compression.took(self._trained, optimizer)
        if not self._stepping:
            self._count_step([optimizer])
            self._end_step()

    def _before_stranger(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer that nobody told of: if it has parameters of the model, it is one of ours from now on."""
        if self._stepping or not self._trained.is_stepped_by(optimizer):
            return
        alone = self._job.size == 1 and not self._can_go_on and isinstance(self.way, Alone)
        if alone and self._trained.clip_norm is None:
            return
        if torch._C._current_graph_task_id() >= 0:
            self._refuse_within_backward()
        if self._job.elastic is not None or (isinstance(self.way, OverServers) and not self.way.workers_step):
            self._refuse_by_hand()
        self._leave_sharing(Unshare.BY_HAND)
        with self._purpose("at the first step of an optimizer made after wrapping; give each worker a backward first"):
            self._follow_beside(optimizer)

    def _follow_beside(self, optimizer: torch.optim.Optimizer) -> None:
        """It steps after those that have stepped with this gradient already."""
        self.follow(self._trained.beside(optimizer, last=self._rounds == max(self._stepped.values())))

    def use(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """All workers step with these from now on."""
        self._check_not_ended()
        self.follow(optimizers)
        self._given_optimizers = optimizers

    def _check_steps_something(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Layers may have been replaced, and optimizers have the old ones still."""
        if self._trained.left and not any(map(self._trained.is_stepped_by, optimizers)):
            raise ConfigError(
                f"no parameter of {type(self._trained.module).__name__} is in this optimizer any more; say "
                "model.optimizer = a new one, made with model.parameters(), or put them into its groups"
            )

    def _before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._stepping:
            if torch._C._current_graph_task_id() >= 0:
                self._refuse_within_backward()
            self._refuse_by_hand()
            self._leave_sharing(Unshare.BY_HAND)
            self._synchronise_for([optimizer])
        self._check_left_gradients()
        if self._trial is not None:
            self._trial.stepping(by_hand=not self._stepping)
        self.way.check_step()
        if self._trained.clip_norm is not None and self._clipped != self._rounds:
            self._clipped = self._rounds
            nn.utils.clip_grad_norm_(self._trained.parameters, self._trained.clip_norm)

    def _refuse_within_backward(self, index: int = 0) -> None:
        """An optimizer that steps in a hook, as soon as there is a gradient, has it before all workers do."""
        if self._job.size > 1 or not isinstance(self.way, Alone):
            raise ConfigError(
                "a hook steps, or takes a gradient away, within backward, when it is this worker's alone: call "
                "optimizer.step() or model.step() after backward, and leave the hook out"
            )

    def _refuse_by_hand(self) -> None:
        if not self.way.workers_step and not isinstance(self.way, SharedParameters):
            raise ConfigError(
                "call model.step() instead of optimizer.step(): no worker has the whole gradient here; or make the "
                "model with share_parameters=False"
            )
        if self._job.elastic is not None:
            raise ConfigError(
                "call model.step() instead of optimizer.step() in a job that may lose or gain workers: it takes a "
                "step again that a worker did not live to finish"
            )

    def _check_left_gradients(self) -> None:
        """A parameter that is no longer the model's, but an optimizer's, has no gradient that all workers have."""
        for name, parameter in self._trained.left_with_gradients() if self._job.size > 1 else []:
            gradient = parameter.grad
            if gradient is not None and self._gradients_left.get(id(parameter)) != (id(gradient), gradient._version):
                raise ConfigError(
                    f"{name} is no longer the model's, so its gradient is this worker's alone, but an optimizer has it "
                    "still, and would step it; take it out of the optimizer's groups"
                )

    def _end_step(self) -> None:
        self._weighed, self._uneven.going, self._backwards = None, None, 0
        if self._trial is not None:
            self._trial.stepped()

    def synchronise(self) -> None:
        """Afterwards every .grad is the one of all workers, where the way has such a moment."""
        if self._job.undone:
            return
        self._leave_sharing(Unshare.WHOLE)
        if not self.way.workers_step:
            self.way.synchronise((), False)
        self._synchronise_for(self._trained.optimizers)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward in here stay, and add up, until a backward outside of it."""
        before, self._synchronising = self._synchronising, False
        self._kept_some = True  # on all workers, whether their backwards reach a parameter or not
        try:
            yield
        finally:
            self._synchronising = before

    @contextlib.contextmanager
    def edit(self) -> Iterator[None]:
        """In it the parameters may be changed; afterwards all workers have what worker 0 has."""
        if self._job.skips():
            with self._void():
                yield
            return
        if self._takes_again and self._kept_some:
            raise ConfigError(
                "model.edit() or load_state_dict between the batches of a step, in a job that may lose workers: "
                "a lost step could not be taken again; edit before its first batch, or after model.step()"
            )
        kept, led = KeptValues(self._trained) if self._takes_again else None, self.way.led
        edited, told = None, False
        try:
            with self._purpose("in model.edit() or load_state_dict(), which all workers enter together"):
                if self.way.is_collective:
                    self.meet()
                with self.way.edit():
                    with self._edits():
                        yield
                    if kept is not None:
                        edited = KeptValues(self._trained)
                        self._count(True)  # all are here: who has not come yet has not edited
        except CommunicationError as error:
            if kept is None or edited is None:
                raise
            told = self._edit_again(error, kept, edited, led)
        self._edited(kept, told=told)

    @contextlib.contextmanager
    def _edits(self) -> Iterator[None]:
        self._editing = True
        try:
            yield
        finally:
            self._editing = False

    @contextlib.contextmanager
    def _void(self) -> Iterator[None]:
        """What is edited in here comes again, with the step that was lost; or all did it before this worker came."""
        kept = KeptValues(self._trained)
        try:
            yield
        finally:
            kept.put_back()
            if isinstance(self.way, SharedParameters):
                self.way.forget_edits()

    @property
    def _takes_again(self) -> bool:
        """Whether a step that is lost with a worker is taken again."""
        return self._can_go_on and isinstance(self.way, EveryStep)

    def _edit_again(self, error: CommunicationError, kept: KeptValues, edited: KeptValues, led: bool) -> bool:
        """One died when all were to have the same edit. It comes again with the step that it is before; else those who
        are left have it from one who does (returns whether that is so), or share it anew."""
        while True:
            kept.put_back()
            if self._job.before_step:
                self._keep_unedited(kept)
                self._go_on(error, finished=False, asking=True)
                return False
            self._go_on(error, finished=True, asking=True)
            if self._job.stayed:
                return True
            if self.way.led and not led and edited.is_now():
                raise ConfigError(
                    "worker 0 died within model.edit(), and nothing was changed in there on this worker, which is the "
                    "first one now: what was changed on worker 0 alone is lost; make the same edit on all workers"
                )
            try:
                with self.way.edit():
                    edited.put_back()
                    self._count(True)
                return False
            except CommunicationError as another:
                error = another

    def _keep_unedited(self, kept: KeptValues) -> None:
        """Of the step that is under way, before its first edit."""
        if self._unedited is None or self._unedited[0] != self._job.begun:
            self._unedited = self._job.begun, kept

    def _edited(self, kept: KeptValues | None, *, told: bool) -> None:
        """All have the edit. `told`: by one who had finished it, and has counted it."""
        if kept is not None and not self._job.undone:
            if self._job.before_step:
                self._keep_unedited(kept)
            self._job.did(told=told)
        if isinstance(self.way, SharedParameters) and self.way.outdated:
            self.together(self._anew, lambda: None)
        if self._trial is not None:
            self._trial.edited_properly()

    def mean(self, add_up: Callable[[Tensor], Tensor], own: Tensor) -> Tensor:
        """Of all workers' values. One that dies meanwhile is not in it, if nobody has heard of its value."""
        job, told = self._job, False
        while not job.skips():
            try:
                job.last_mean = add_up(own.clone()).tolist()
            except CommunicationError as error:
                if not self._takes_again:
                    raise
                self._go_on(error, finished=not job.before_step, asking=True)
                if job.undone or not (told := job.stayed):
                    continue
            job.did(told=told)
            return torch.tensor(job.last_mean, dtype=own.dtype)
        return own

    # --- the program changes ---

    def _share_if_proven(self) -> None:
        """After a few steps that edited nothing parameters are shared, if that is so on all workers."""
        trial = self._trial
        if trial is None or trial.steps < TRIAL_STEPS or not can_be_shared(self._trained, self._job, self._wishes):
            return
        edits = self._count(trial.edits)
        self._trial, self._unproven = None, ""
        if edits:
            self._unproven = "the program edits gradients or parameters, or calls optimizer.step()"
            self.way.reason = self.way.reason.replace(ON_TRIAL, self._unproven)
        else:
            self._anew()

    def _leave_sharing(self, why: Unshare, index: int = 0) -> None:
        """Where parameters are shared: from here on they are not. The others hear of it at their next step, or do the
        same."""
        if isinstance(self.way, SharedParameters):
            self._covers.uncover(whole=True)
            self._unshare(self.way.leave(why, index))

    def _unshare(self, why: str) -> None:
        """All workers do this at once, before a step of which nothing has happened yet but backwards."""
        assert self._job.group is not None
        check_alike(self._trained, self._job.group)
        self._trial, self._on_trial, self._unproven = None, False, why
        advice = (
            "; put changes of parameters into `with model.edit():`, say clip_norm=, or share_parameters=False"
            if self._wishes.trial  # fit has no such options, or others
            else ""
        )
        if self._job.rank == 0:  # once, and not by each worker
            warnings.warn(
                f"parameters are shared no more, since {why}; gradients are all-reduced, with the same results{advice}",
                stacklevel=users_level(),
            )
        hooks = self._hooks
        self._anew()
        self._hooks.take_over(hooks)
        self._given.clear()
        self._given_half.clear()
        self._stepped = dict.fromkeys(self._stepped, self._rounds)  # what has not been synchronised yet will be

    def _get_whole_gradients(self, index: int) -> None:
        """Somebody looks at a gradient that is this worker's alone."""
        if torch._C._current_graph_task_id() != -1:
            raise ConfigError(
                f"the gradient of {self._trained.names[index]} was looked at within a later backward, where parameters "
                "are shared; make the model with share_parameters=False"
            )
        parameters, names = self._trained.parameters, self._trained.names
        without = [number for number, parameter in enumerate(parameters) if parameter.grad is None]
        self._leave_sharing(Unshare.GRADIENT, index)
        self._synchronise(late=False)  # who looks may edit what it sees; a worker that is at its step already can't
        missed = next((number for number in without if parameters[number].grad is not None), None)
        if missed is not None:  # the program may have gathered those that it is about to edit
            raise ConfigError(
                f"{names[missed]} has a gradient on another worker, and had none here when gradients were looked at: "
                "parameters are shared; make the model with share_parameters=False"
            )

    def follow(self, optimizers: Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Trains what the program asks for now: parameters were frozen, converted, replaced, given to an optimizer, or
        are to be stepped by other optimizers."""
        old = self._trained
        new = find_trained(
            old.module,
            old.optimizers if optimizers is None else optimizers,
            old.clip_norm,
            broadcast_buffers=old.broadcast_buffers,
            closures=old.closures,
            before=old,
        )
        if isinstance(self.way, OverServers):
            _check_servers_know(new, old, self.way)
            if not isinstance(self.way, ServersWay):
                check_one_optimizer(new)
            if not self.way.workers_step and list(new.optimizers) != list(old.optimizers):
                raise ConfigError(
                    "the servers step, with the optimizer that the model was wrapped with and what it has learnt; "
                    "close() the wrapper and wrap the model again, with Servers(..., name='another')"
                )
        else:
            self.together(self.way.finish, lambda: None)
        self._check_left(new)
        hooks, self._trained = self._hooks, new
        self._given.clear()  # whatever stays here is new to the way
        self._given_half.clear()
        if isinstance(self.way, OverServers):
            self._hooks.remove()
            self.way.follow(self._trained)
            self._hooks = self._watch()
        else:
            if self._on_trial:
                self._trial, self._unproven = Trial(self._trained), ON_TRIAL
            self._anew(_put_in_place(new, old))
            if self._weighed is not None:  # which is said before forward, where this is called
                self._weighed = self.way.weigh(*self._said)
        self._hooks.take_over(hooks)
        self._know_optimizers(new)
        if self._loads is not None:
            self._loads.remove()
            self._loads = self._watch_loads()

    def _know_optimizers(self, new: Trained) -> None:
        last = max(self._stepped.values())
        self._stepped = {id(optimizer): self._stepped.get(id(optimizer), last) for optimizer in new.optimizers}
        self._step_hooks.know(new.optimizers)
        before, self._gradients_left = self._gradients_left, {}
        for _, parameter in new.left:
            gradient = parameter.grad
            if gradient is not None:
                now = id(gradient), gradient._version
                self._gradients_left[id(parameter)] = before.get(id(parameter), now)

    def _check_left(self, new: Trained) -> None:
        """A parameter that is trained no more, but has a gradient: an optimizer steps it, as if it were not frozen."""
        stay = {id(parameter) for parameter in new.parameters}
        stepped = {id(p) for group in new.groups for p in group["params"]}
        for index in self._hooks.own_gradients() if self._job.size > 1 else []:
            gone = id(self._trained.parameters[index])
            if gone in stepped and gone not in stay:
                done = "was frozen" if any(id(p) == gone for _, p in new.everything) else "was taken out"
                raise ConfigError(
                    f"{self._trained.names[index]} {done} when it had a gradient that is this "
                    "worker's alone, and which the next step would take; call step() or zero_grad() first"
                )

    def around(self, change: Callable[[], T]) -> T:
        """Converts the model (`.double()`, `.to(...)`), on all workers: its way ends, and begins anew afterwards."""
        if isinstance(self.way, OverServers):
            raise ConfigError("the servers hold the parameters as they are; convert the model before wrapping it")
        if self._job.size > 1 and self._hooks.accumulating:
            raise ConfigError(
                "there are gradients that are this worker's alone; call step() or zero_grad() before the model is "
                "converted"
            )
        self.together(self.way.finish, lambda: None)
        self.way.close()
        self.way = Alone(self._emit)
        try:
            return change()
        finally:
            self.follow()

    def _anew(self, replaced: Sequence[str] = ()) -> None:
        self._covers.uncover()
        gradients = [(p, p.grad) for p in self._trained.parameters]
        self._hooks.remove()
        before = self.way
        self.way.close()
        self.way = Alone(self._emit)
        for name in replaced:  # what was known of another parameter
            self._wishes.outer.of.pop(name, None)
            if self._wishes.compression is not None:
                self._wishes.compression.forget(name)
        self.way = self._choose_way()
        if isinstance(self.way, LocalSteps) and isinstance(before, LocalSteps):
            self.way.go_on_from(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        self._hooks = self._watch()

    def state(self) -> dict[str, Any]:
        """What the way keeps that is in no model and no optimizer: of local steps, and what compression left out."""
        way, compression = self.way, self._wishes.compression
        if isinstance(way, LocalSteps):
            return way.state()
        if isinstance(way, CompressedReduce | LeftToOne) and compression is not None:
            return {"compression": compression.state(way.factors())}
        left = way.left_out() if isinstance(way, OverServers) else {}
        return {"compression": left} if left else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._load_state(state)
        if self._loads is not None and state:
            self._loads.synced()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        way, compression = self.way, self._wishes.compression
        if not isinstance(state, Mapping) or (state and not {"outer", "compression"} & {*state}):
            raise ConfigError("this is nothing that model.sync_state() gave; load what was saved beside the model")
        if isinstance(way, LocalSteps) and "outer" in state:
            way.load_state(state)
            return
        if "outer" in state:
            raise ConfigError("this state is of workers that step by themselves; load it with sync=gradtide.Local(...)")
        if not state:
            return
        if isinstance(way, OverServers) and compression is not None:
            way.load_left_out(state["compression"])
            return
        if not isinstance(way, CompressedReduce | LeftToOne) or compression is None:
            if holds_something(state["compression"]):
                raise ConfigError("this state has what compression left out; load it with the same compress=")
            return
        way.load_factors(compression.load_state(state["compression"], self._trained))

    def begin_again(self) -> None:
        """After RolledBack, when the servers hold other values than they did: takes those."""
        self.way.begin_again()
        self._end_step()

    def meet(self) -> None:
        """All are alike afterwards, as they are anyway where every step is taken together."""
        way = self.way.now if isinstance(self.way, TogetherFirst) else self.way
        if not isinstance(way, EveryStep):
            self.together(way.catch_up if isinstance(way, LocalOverServers) else way.finish, lambda: None)

    def finish(self) -> None:
        """After the last step: waits until what this worker has sent has arrived, or all have met."""
        if self._ended:
            return
        if not isinstance(self.way, OverServers) and sys.exc_info()[0] is None and self._trained.is_outdated():
            self.follow()
        if sys.exc_info()[0] is None:
            self._job.admit()
        self.together(self.way.finish, lambda: None)
        if sys.exc_info()[0] is None:
            self._job.admit()  # where the last window has just ended
        self._look_at_the_end()

    def went_back(self) -> None:
        """The servers began again with a checkpoint, and the model is about to."""
        if isinstance(self.way, ServersWay):
            self.way.smaller.went_back()

    def close(self) -> None:
        """Ends the training together; the model keeps its parameters. Without `finish`, as after a failure, what is
        under way is lost."""
        self._hooks.remove()
        if self._loads is not None:
            self._loads.remove()
        self._covers.uncover()
        self._step_hooks.remove()
        self._job.trainings = [known for known in self._job.trainings if known() not in (None, self)]
        self._close_way()
        if self._wishes.outer.inside is not None:
            self._wishes.outer.inside.close()

    def _close_way(self) -> None:
        """Once: afterwards model and optimizer are the program's, and go on without us."""
        if not self._closed:
            self._closed = True
            self.way.close()

    # --- a model that is wrapped again ---

    def _have_others_let_go(self) -> None:
        """Whoever trains a parameter of this model until now, in a wrapper that nobody closed."""
        ours = {id(p) for _, p in self._trained.everything}
        alive = [found for known in self._job.trainings if (found := known()) is not None]
        others = [one for one in alive if any(id(p) in ours for _, p in one._trained.everything)]
        if any(isinstance(one.way, OverServers) for one in others):
            raise ConfigError(
                "this model is wrapped already, and servers hold its training; call close() on that wrapper, on all "
                "workers, before the model is wrapped again"
            )
        for one in others:
            one._let_go()

    def _let_go(self) -> None:
        self.together(self.way.finish, lambda: None)
        self.close()
        self.way, self._trial = Alone(self._emit), None
        self._ended = (
            "this model was wrapped again since, and is trained through that wrapper; use it instead of this one, or "
            "wrap one module that has all of what is trained"
        )

    def _check_not_ended(self) -> None:
        if self._ended:
            raise ConfigError(self._ended)

    def __del__(self) -> None:
        """Nobody closed it, and nobody has it any more: the model may live on, with parameters of its own."""
        if not sys.is_finalizing() and getattr(self, "_closed", None) is False and self.way.is_collective:
            self._close_way()

    # --- workers that come, go and die ---

    def together(self, work: Callable[[], T], alone: Callable[[], T]) -> T:
        """Runs what all workers do together besides a step, such as adding up what each has seen of an epoch.

        When one dies meanwhile, those who are left go on, and each takes what `alone` gives: some of them may have
        finished the work and be in the next step already, so nobody can ask for it again.
        """
        try:
            return work()
        except CommunicationError as error:
            if not self._can_go_on:
                raise
            self._go_on(error, finished=True)
            return alone()

    @property
    def _can_go_on(self) -> bool:
        return self._job.elastic is not None and self.way.is_collective

    def _is_called(self) -> bool:
        """Does somebody come or go? All workers of a group must see it at the end of the same step."""
        elastic = self._job.elastic
        if elastic is None:
            return False
        if self._is_apart:
            return False
        notice = elastic.notice()
        if notice is not None and elastic.number in notice.going:
            self.way.depart()
        if not self.way.is_collective:
            return False
        return self._count(notice is not None and notice.generation == elastic.generation) > 0

    @property
    def is_called(self) -> bool:
        """Whether somebody comes or goes before the next batch; of local steps, where all have just met."""
        return self._job.called or (isinstance(self.way, LocalSteps) and self.way.is_called)

    @property
    def can_go_on(self) -> bool:
        """Whether the others of the job go on without one who dies."""
        return self._can_go_on

    @property
    def keeps_gradients(self) -> bool:
        """Whether there may be some that no step has taken yet, on this worker or, in no_sync, on another."""
        return self._kept_some or self._hooks.holding

    def recover(self, error: CommunicationError) -> None:
        """A peer died between two steps, or within one: of several batches, or in a loop within the body, where the
        batch that is under way was cut for it, too."""
        finished = not (self._job.undone or self.keeps_gradients or (self._takes_again and self._job.before_step))
        self._end_step()
        self._go_on(error, finished, asking=True, busy=self._job.inside > 0 or self._is_apart)

    def admit(self) -> None:
        """Between two batches."""
        error: CommunicationError | None = None
        if isinstance(self.way, CompressedReduce | LocalSteps) and self._job.elastic is not None:
            try:
                self.way.hand_over(self._job.elastic.number, self._job.elastic.going)
            except CommunicationError as died:
                error = died
        self._go_on(error, finished=True, asking=True, busy=False)

    def arrive(self) -> None:
        """This newcomer is where the others are; what its script loaded until now, they had loaded long before."""
        told, self._told = self._told, None
        if isinstance(self.way, SharedParameters):
            self.way.forget_edits()
        elif told is not None:
            told.restore()

    def _note_lost(self, *, tried: bool) -> None:
        job, self._lost = self._job, None
        if not job.undone:
            self._tried = None
            return
        job.stepped = job.batches - job.undone
        if not job.shares:
            raise ConfigError(
                "a step was lost with a worker that was taken outside of the loop over gradtide.shard that gave its "
                "batches, so they can't be given again; take steps within it"
            )
        self._lost = LostStep(self._trained, self.way, job)
        if tried:
            self._tried = self._lost
        elif self._tried is None and self._step_begin is not None:
            self._step_begin.check_options()

    def take_back(self) -> None:
        """The batches of a lost step are about to come again: what the program did since it was lost never was."""
        lost, self._lost = self._lost, None
        if lost is not None:
            lost.take_back()
            self._step_begin = None
            for parameter in self._trained.parameters:
                parameter.grad = None
            self._forget_given()
            self._hooks.synchronised(self._equal_part())

    def _go_on(
        self, error: CommunicationError | None, finished: bool, *, asking: bool = False, busy: bool = True
    ) -> None:
        """A peer died, or somebody comes or goes: the next members go on from the last finished step, and `shard` gives
        the batch of a step that was lost again. `asking`: not in a step, but for the order of batches, say. `busy`: the
        program is not done with the batch, so whoever comes has to wait."""
        last: LastStep | None = None
        job, script = self._job, copy.deepcopy(self._job.state)
        undone = job.undone or (0 if finished else job.batches - job.begun)
        done = (0, 0) if self._is_apart else (job.batches + job.behind - undone, job.done)
        own = job.done
        while True:
            try:
                # From here on nobody writes to what the ranks shared.
                self._job.regroup(keeps=self._keeps, busy=busy, done=done)
                if isinstance(self.way, LocalSteps) and self._meet_again(self.way, asking):
                    if self._wishes.compression is not None and error is not None:
                        self._wishes.compression.tell_of_death(self._job)
                    return
                job.undone, job.done, job.stayed, self._wishes.outer.alike = undone, own, False, True
                if last is None:
                    last = self._let_go_of_step()
                last.restore()
                if self._wishes.compression is not None:
                    self._wishes.compression.regrouped(died=error is not None)
                self.way = self._choose_way()
                self._hooks.remove()
                self._hooks = self._watch()
                if job.stayed:
                    job.take_state(script)
                self._note_lost(tried=not asking)
                self._stepped = dict.fromkeys(self._stepped, self._rounds)  # what was synchronised and lost is no more
                return
            except (PeerLost, PeerTimeout):
                continue  # one more died meanwhile
            except CommunicationError as another:
                raise another from error

    def _let_go_of_step(self) -> LastStep:
        """What was begun of a step that was lost, and what the script has noted in it, never was."""
        job = self._job
        if job.undone and self._step_begin is not None:
            self._step_begin.restore()
        self.way.close()
        self.way = Alone(self._emit)
        if job.undone:
            if self._unedited is not None and self._unedited[0] == job.begun:
                self._unedited[1].put_back()
            job.take_state(job.state_before)
        return LastStep(self._trained)

    @property
    def _keeps(self) -> bool:
        """Whether compression has left out something here that was not handed over: who is to go may have been told
        since, or before a worker died."""
        compression = self._wishes.compression
        return compression is not None and compression.residuals.hold_something

    @property
    def _is_apart(self) -> bool:
        """Whether each worker takes its steps by itself, so that whoever comes waits for a meeting."""
        return isinstance(self.way, LocalSteps) and not self.way.together

    def _meet_again(self, way: LocalSteps, asking: bool) -> bool:
        """Local steps are not taken again: only the meeting is, if it was that which failed."""
        if not way.rejoin(open_group(self._trained, self._job, self._wishes), asking=asking):
            return False
        if way.is_meeting:
            way.meet()
        return True

    # --- workers with more and with fewer batches ---

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Who leaves this block first takes part in the others' steps, with nothing to add, until all are done."""
        if isinstance(self.way, LocalSteps) and self.way.inside is not None:
            raise ConfigError("model.join() does not go with Local(within='host'); let loops have the same length")
        if self._can_go_on:
            raise ConfigError(
                "model.join() in a job that may lose or gain workers: each worker's batches are its own, so those of a "
                "step that is lost with a worker can't be given again; go over gradtide.shard, train over servers, or "
                "leave --min-workers and the like out"
            )
        over_servers = self.way.uneven() if isinstance(self.way, OverServers) else contextlib.nullcontext()
        with self._uneven.begun(), over_servers:
            yield
            while self.way.is_collective and self._uneven.ask_who_goes_on(self.way, going=False):
                self.step()

    def _count(self, this_one: bool) -> int:
        """How many say yes."""
        return int(self.way.add_up(torch.tensor([int(this_one)])))


def _put_in_place(new: Trained, old: Trained) -> list[str]:
    """The names that stand for another parameter than they did, or for none."""
    now = {name: id(parameter) for name, parameter in new.everything}
    return [name for name, parameter in (*old.left, *old.everything) if now.get(name) != id(parameter)]


def _check_servers_know(new: Trained, old: Trained, way: OverServers) -> None:
    """Over servers workers begin alike with a new parameter only if it is made a key of its own there."""
    known = {id(p) for _, p in (*old.everything, *old.left)}
    names = {name for name, _ in (*old.everything, *old.left)}
    stepped = {id(p) for group in new.groups for p in group["params"]}
    changed = set(old.converted())
    for name, parameter in new.everything:
        made = way.holds_values and name not in names and parameter.requires_grad and id(parameter) in stepped
        if name in changed or (id(parameter) not in known and not made):
            raise ConfigError(
                f"{name} is another parameter than it was when the model was wrapped, or new, and the servers know "
                "nothing of it; close() the wrapper and wrap the model again, with Servers(..., name='another')"
            )


def _is_over_servers(sync: object) -> bool:
    """Where no group is opened."""
    return isinstance(sync, Servers) or getattr(sync, "over", None) is not None


def _is_async(sync: object) -> bool:
    """Servers, or local steps over them."""
    return "async" in (getattr(sync, "mode", None), getattr(getattr(sync, "over", None), "mode", None))
