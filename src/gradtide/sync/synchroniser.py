"""Keeps a model alike on all workers: along one way, and along the next one when workers come, go or die."""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradtide.compress import AUTO
from gradtide.errors import CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsReady, ParametersUpdated
from gradtide.processes.malloc import keep_freed_memory
from gradtide.sync.alone import Alone
from gradtide.sync.choose import ON_TRIAL, TRIAL_STEPS, Wishes, can_be_shared, choose_way, open_group
from gradtide.sync.compressed import CompressedReduce, LeftToOne
from gradtide.sync.compressed.loads import LoadedStates
from gradtide.sync.compressed.state import holds_something
from gradtide.sync.job import Job
from gradtide.sync.local import LocalOverServers, LocalSteps, TogetherFirst
from gradtide.sync.servers import ServersWay
from gradtide.sync.shared.way import SharedParameters, Unshare
from gradtide.sync.state import LastStep, check_alike
from gradtide.sync.trained import Trained, find_trained, needs_closure
from gradtide.sync.watching.backward import BackwardHooks
from gradtide.sync.watching.guard import Trial
from gradtide.sync.watching.own_gradient import OwnGradients
from gradtide.sync.watching.uneven import UnevenLoops
from gradtide.sync.ways import EveryStep, Way

__all__ = ["Synchroniser"]

T = TypeVar("T")
OverServers = ServersWay | LocalOverServers | TogetherFirst


class Synchroniser:
    """One worker's end of the training. All workers make it together, and begin with what worker 0 has."""

    def __init__(self, trained: Trained, job: Job, wishes: Wishes, emit: Emit) -> None:
        keep_freed_memory()
        self._trained, self._job, self._wishes, self._emit = trained, job, wishes, job.watched(emit)
        if any(isinstance(module, _BatchNorm) for module in trained.module.modules()):
            job.least_part = max(job.least_part, 2)
        self._synchronising, self._stepping, self._uneven = True, False, UnevenLoops(job)
        self._weighed: float | None = None  # what the user said that this worker's loss counts
        self._said = 0.0, 0.0  # the same as it was said, for another way
        self._rounds, self._clipped = 0, 0  # synchronisations so far; the one whose gradient was clipped
        self._stepped = dict.fromkeys(map(id, trained.optimizers), 0)  # the round of each optimizer's last step
        self._backwards, self._warned = 0, False  # since the last step
        self._kept_some = False  # whether gradients may have stayed here since the last synchronisation (no_sync)
        self._given, self._given_half = set[int](), set[int]()  # gradients that the way has; those with more in no_sync
        self._failed: CommunicationError | None = None  # a peer died in backward; the step will see to it
        self._may_share = wishes.sync == "auto" and wishes.share_parameters is not False
        self._may_share &= wishes.compression is None or wishes.compression.settings.codec == AUTO
        self._on_trial = self._may_share and wishes.trial and wishes.share_parameters is None
        self._trial, self._unproven = Trial(trained) if self._on_trial else None, ON_TRIAL if self._on_trial else ""
        self.way = self._choose_way()
        job.nobody_waits = _is_async(wishes.sync)
        if self._can_go_on:
            job.recover = _recover_by(weakref.ref(self))
        self._hooks, self._editing, self._loads = self._watch(), False, self._watch_loads()
        self._around_steps = [hook for optimizer in trained.optimizers for hook in self._watch_optimizer(optimizer)]
        if isinstance(self.way, LocalSteps) and self._is_called_apart(self.way):
            self._go_on(None, finished=True)

    def _purpose(self, text: str) -> contextlib.AbstractContextManager[None]:
        """What the user will read if other workers do something else meanwhile."""
        group = self._job.group if self.way.is_collective else None
        return contextlib.nullcontext() if group is None else group.purpose(text)

    def _choose_way(self) -> Way:
        """As worker 0 does: one that has just come knows less of how the program goes."""
        if self._may_share and self._job.group is not None:
            trial = self._trial
            known = torch.tensor([not self._unproven, trial is None, trial.steps if trial else 0, self._on_trial])
            self._job.group.broadcast(known)
            proven, over, steps, self._on_trial = bool(known[0]), bool(known[1]), int(known[2]), bool(known[3])
            if proven or (over and self._unproven in ("", ON_TRIAL)):  # else this worker knows why
                self._unproven = "" if proven else "before this worker came, the program edited gradients or parameters"
            way = choose_way(self._trained, self._job, self._wishes, self._emit, unproven=self._unproven)
            self._trial = None if over else Trial(self._trained, steps)  # with the values that all begin with
            return way
        return choose_way(self._trained, self._job, self._wishes, self._emit, unproven=self._unproven)

    def _watch(self) -> BackwardHooks:
        told = self._on_gradient, self._on_end, self._on_adding
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
        """What the program changed since the last step is taken up now: a layer unfrozen, a group added."""
        if self._hooks.unfinished and self._synchronising:
            raise ConfigError(
                "the last backward on this worker ended in an error, when some of its gradients were with the others "
                "already; end this worker, or catch errors before backward"
            )
        if self._weighed is not None:
            self._check_weighed()
        if self._trained.is_outdated():
            self.follow()

    def watch(self, outputs: Any) -> None:
        """What forward returned."""
        self._hooks.watch(outputs)

    def _on_adding(self, index: int, held: Tensor | None) -> None:
        if self._wishes.compression is not None:
            over_servers = isinstance(self.way, ServersWay)
            self._wishes.compression.begins(self._trained.names[index], held, over_servers=over_servers)

    def _on_gradient(self, index: int, weight: float) -> None:
        if self._synchronising:
            self._given.add(index)
            self._given_half.discard(index)
            self.way.ready(index, weight)
        elif index in self._given:
            self._given_half.add(index)

    def _on_end(self, added: bool) -> None:
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
                stacklevel=2,
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
        if terms < 0:
            raise ConfigError(f"weigh({terms:g}): a mean is over 0 terms or more")
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

    def step(self, optimizers: Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Synchronises what has not left yet, updates every worker's parameters alike, and clears the gradients."""
        finished = False
        if not self._wishes.trial:  # fit's backwards are pieces of one part
            self.way.saw()
        try:
            self._take_step(self._trained.optimizers if optimizers is None else optimizers)
            self._count_step(self._trained.optimizers if optimizers is None else optimizers)
            finished = True
            self._end_step()
            if self._is_called():
                self._go_on(None, finished)
            else:
                self._share_if_proven()
        except CommunicationError as error:
            if not self._can_go_on:
                raise
            self._end_step()
            self._go_on(error, finished)
        self._emit(ParametersUpdated())

    def _count_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Where there are several optimizers, a step is over with that of the last one."""
        if any(optimizer is self._trained.optimizers[-1] for optimizer in optimizers):
            self.way.stepped()

    def _take_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if not self.way.workers_step and self._trained.is_hooked_anew():
            self.follow()
        if not self.way.workers_step:
            self._give_and_step()
        if self.way.workers_step:  # now, if not before
            self._let_step(optimizers)

    def _give_and_step(self) -> None:
        """Where others step too: servers, or each worker its share."""
        weights = self._hooks.weights()
        self._covers.uncover()
        if self._kept_some:
            self._check_parts()
            for index in self._given_half.intersection(self._hooks.own_gradients()):
                self.way.ready(index, weights[index])
        self._emit(GradientsReady())
        if isinstance(self.way, SharedParameters) and (why := self.way.begin_step(weights)):
            self._unshare(why)
            return
        self.way.step(weights)
        self._rounds += 1
        self._forget_given()
        self._hooks.synchronised(self._equal_part())
        self.way.share_buffers(self._uneven.first_going)
        # What a learning-rate scheduler looks at before it warns that the optimizer has not stepped yet.
        self._trained.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _let_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Where each worker steps with the whole gradient."""
        if self._trained.closures and any(map(needs_closure, optimizers)):
            raise ConfigError("this optimizer computes the loss anew within its step; call optimizer.step(closure)")
        self._synchronise_for(optimizers)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        self._stepping = True
        try:
            for optimizer in optimizers:
                optimizer.step()
        finally:
            self._stepping = False
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        if len(optimizers) == len(self._trained.optimizers):
            for parameter in self._trained.parameters:
                parameter.grad = None

    def _synchronise_for(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """A worker whose backward reached no parameter, or was in no_sync, gives its part now."""
        if self._kept_some or self._rounds == max(self._stepped[id(optimizer)] for optimizer in optimizers):
            if self._trained.is_outdated():
                self.follow()
            self._check_parts()
            self._synchronise(late=True)

    def _check_parts(self) -> None:
        """What stayed here until now must be as backward left it: an edit of a part is not one of the whole."""
        if self._wishes.trial and self._job.size > 1:
            self._hooks.check_unchanged(self._trained.names)

    def _watch_optimizer(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        def before(optimizer: Any, arguments: Any, options: Any) -> None:
            self._before_optimizer(optimizer)

        def after(optimizer: Any, arguments: Any, options: Any) -> None:
            self._stepped[id(optimizer)] = self._rounds
            if self._wishes.compression is not None:
                self._wishes.compression.took(self._trained, optimizer)
            if not self._stepping:
                self._count_step([optimizer])
                self._end_step()

        before.of_gradtide = after.of_gradtide = True  # type: ignore[attr-defined]
        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def _before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._stepping:
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
            self._leave_sharing(Unshare.BY_HAND)
            self._synchronise_for([optimizer])
        if self._trial is not None:
            self._trial.stepping(by_hand=not self._stepping)
        self.way.check_step()
        if self._trained.clip_norm is not None and self._clipped != self._rounds:
            self._clipped = self._rounds
            nn.utils.clip_grad_norm_(self._trained.parameters, self._trained.clip_norm)

    def _end_step(self) -> None:
        self._weighed, self._uneven.going, self._backwards = None, None, 0
        if self._trial is not None:
            self._trial.stepped()

    def synchronise(self) -> None:
        """Afterwards every .grad is the one of all workers, where the way has such a moment."""
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
        with self._purpose("in model.edit() or load_state_dict(), which all workers enter together"):
            if self.way.is_collective:
                self.meet()
            with self.way.edit():
                self._editing = True
                try:
                    yield
                finally:
                    self._editing = False
        if isinstance(self.way, SharedParameters) and self.way.outdated:
            self._anew()
        if self._trial is not None:
            self._trial.edited_properly()

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
        warnings.warn(
            f"parameters are shared no more, since {why}; gradients are all-reduced, with the same results{advice}",
            stacklevel=2,
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

    def follow(self) -> None:
        """Trains what the program asks for now: parameters were frozen, unfrozen, converted, given to an optimizer."""
        old, hooks = self._trained, self._hooks
        if not isinstance(self.way, OverServers):
            self.finish()
        new = find_trained(
            old.module,
            old.optimizers,
            old.clip_norm,
            broadcast_buffers=old.broadcast_buffers,
            closures=old.closures,
        )
        self._check_left(new)
        self._trained = new
        self._given.clear()  # whatever stays here is new to the way
        self._given_half.clear()
        if isinstance(self.way, OverServers):
            self._hooks.remove()
            self.way.follow(self._trained)
            self._hooks = self._watch()
        else:
            if self._on_trial:
                self._trial, self._unproven = Trial(self._trained), ON_TRIAL
            self._anew()
            if self._weighed is not None:  # which is said before forward, where this is called
                self._weighed = self.way.weigh(*self._said)
        self._hooks.take_over(hooks)
        if self._loads is not None:
            self._loads.remove()
            self._loads = self._watch_loads()

    def _check_left(self, new: Trained) -> None:
        """A parameter that is trained no more, but has a gradient: an optimizer steps it, as if it were not frozen."""
        stay = {id(parameter) for parameter in new.parameters}
        for index in self._hooks.own_gradients() if self._job.size > 1 else []:
            if id(self._trained.parameters[index]) not in stay:
                raise ConfigError(
                    f"{self._trained.names[index]} was frozen when it had a gradient that is this worker's alone, and "
                    "which the next step would take; call step() or zero_grad() first"
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
        self.finish()
        self.way.close()
        self.way = Alone(self._emit)
        try:
            return change()
        finally:
            self.follow()

    def _anew(self) -> None:
        self._covers.uncover()
        gradients = [(p, p.grad) for p in self._trained.parameters]
        self._hooks.remove()
        self.way.close()
        self.way = Alone(self._emit)
        self.way = self._choose_way()
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
            self.together(way.finish, lambda: None)

    def finish(self) -> None:
        """After the last step: waits until what this worker has sent has arrived, or all have met."""
        self.together(self.way.finish, lambda: None)

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
        for hook in self._around_steps:
            hook.remove()
        self.way.close()
        if self._wishes.outer.inside is not None:
            self._wishes.outer.inside.close()

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
        if isinstance(self.way, LocalSteps) and not self.way.together:
            return self._is_called_apart(self.way)
        notice = elastic.notice()
        if notice is not None and elastic.number in notice.going:
            self.way.depart()
        if not self.way.is_collective:
            return False
        called = self._count(notice is not None and notice.generation == elastic.generation) > 0
        if called and isinstance(self.way, CompressedReduce):
            self.way.hand_over(elastic.number, elastic.going)
        return called

    def _is_called_apart(self, way: LocalSteps) -> bool:
        """So it was said where all met. What those who go have left out goes to one who stays."""
        called, elastic = way.is_called(), self._job.elastic
        if called and elastic is not None:
            way.hand_over(elastic.number, elastic.going)
        return called

    def _go_on(self, error: CommunicationError | None, finished: bool, *, asking: bool = False) -> None:
        """A peer died, or somebody comes or goes: the next members go on from the last finished step, and `shard` gives
        the batch of a step that was lost again. `asking`: for the order of batches."""
        last: LastStep | None = None
        while True:
            try:
                self._job.regroup(keeps=self._keeps)  # from here on nobody writes to what the ranks shared
                if isinstance(self.way, LocalSteps) and self._is_apart(self.way, asking):
                    if self._wishes.compression is not None and error is not None:
                        self._wishes.compression.tell_of_death(self._job)
                    if self._is_called_apart(self.way):
                        continue
                    return
                self._job.undone, self._wishes.outer.alike = not finished, True
                if last is None:
                    self.way.close()
                    last, self.way = LastStep(self._trained), Alone(self._emit)
                last.restore()
                if self._wishes.compression is not None:
                    self._wishes.compression.regrouped(died=error is not None)
                self.way = self._choose_way()
                self._hooks.remove()
                self._hooks = self._watch()
                return
            except (PeerLost, PeerTimeout):
                continue  # one more died meanwhile
            except CommunicationError as another:
                raise another from error

    @property
    def _keeps(self) -> bool:
        """Whether compression has left out something here that was not handed over: who is to go may have been told
        since, or before a worker died."""
        compression = self._wishes.compression
        return compression is not None and compression.residuals.hold_something

    def _is_apart(self, way: LocalSteps, asking: bool) -> bool:
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
        over_servers = self.way.uneven() if isinstance(self.way, OverServers) else contextlib.nullcontext()
        with self._uneven.begun(), over_servers:
            yield
            while self.way.is_collective and self._uneven.ask_who_goes_on(self.way, going=False):
                self.step()

    def _count(self, this_one: bool) -> int:
        """How many say yes."""
        return int(self.way.add_up(torch.tensor([int(this_one)])))


def _is_async(sync: object) -> bool:
    """Servers, or local steps over them."""
    return "async" in (getattr(sync, "mode", None), getattr(getattr(sync, "over", None), "mode", None))


def _recover_by(known: "weakref.ref[Synchroniser]") -> Callable[[CommunicationError], None]:
    """A job outlives the models that it trains, and must not keep them."""

    def recover(error: CommunicationError) -> None:
        found = known()
        if found is None:
            raise error
        found._go_on(error, finished=True, asking=True)

    return recover
