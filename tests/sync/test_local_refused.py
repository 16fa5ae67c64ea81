"""Local steps over servers: what is refused, and what workers that do different things are told."""

import threading

import pytest
import torch
from local_threads import advance, alike, at, build, in_threads, sgd, values

import gradtide
from gradtide import Servers
from gradtide.errors import ConfigError
from gradtide.sync import Job, Local
from gradtide.sync.job import Elastic

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Local(2, over="bsp"), "over='bsp' makes no sense"),
        (lambda: Local(2, over=Servers("bounded:2")), r"Local over Servers\('bounded:2'\)"),
        (lambda: Local(2, over=Servers("bps")), r"Servers\('bps'\) makes no sense"),
        (lambda: Local(2, adapt=True), "adapt=True is for workers that wait for nobody"),
        (lambda: Local(2, over=Servers("bsp"), adapt=True), "adapt=True is for workers that wait for nobody"),
        (lambda: Local(2, over=Servers("async"), adapt=3), "adapt=3 makes no sense"),
        (lambda: Local(2, over=Servers("async"), after=1), r"steps taken together \(after=\) need rounds"),
        (lambda: Local(2, over=Servers("bsp", resume=True), after=1), "leave it out with"),
        (lambda: gradtide.update("delayed_nesterov", every=0), "every=0 makes no sense"),
        (lambda: gradtide.update("delayed_nesterov", momentum=1.0), "momentum=1.0 makes no sense"),
        (lambda: gradtide.update("delayed_nesterov", lr=-1.0), "lr=-1.0 makes no sense"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("local", "options", "job", "says"),
    [
        (Local(2, over=Servers("bsp")), {}, Job(), "this job has no servers"),
        (Local(2, over=Servers("bsp")), {"share_parameters": True}, Job(), "leave share_parameters= out"),
        (Local(2, over=Servers("bsp"), after=2), {}, Job(elastic=Elastic("", "", 0)), "leave after= out"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_changed(local, options, job, says):
    net = build()
    with pytest.raises(ConfigError, match=says):
        gradtide.DataParallel(net, sgd(net), local, job=job, **options)


def test_optimizers_with_a_closure_that_can_not_be_are_refused():
    net, over = build(), Local(2, over=Servers("bsp"))
    with pytest.raises(ConfigError, match="clip_norm is of one gradient a step"):
        gradtide.DataParallel(net, torch.optim.LBFGS(net.parameters()), over, clip_norm=1.0, job=Job())
    with pytest.raises(ConfigError, match="LBFGS steps with a closure"):
        gradtide.DataParallel(net, torch.optim.LBFGS(net.parameters()), Local(2), job=Job())
    elastic = Job(elastic=Elastic("", "", 0))
    with pytest.raises(ConfigError, match="LBFGS steps with a closure, but in a job that may lose or gain workers"):
        gradtide.DataParallel(net, torch.optim.LBFGS(net.parameters()), over, job=elastic)


def test_workers_can_not_change_what_the_servers_hold(stores):
    net = build()
    model = gradtide.DataParallel(net, sgd(net), Local(2, over=at(stores)), job=Job())
    before = values(net)
    with pytest.raises(ConfigError, match="the servers hold the base"):
        model.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})
    with pytest.raises(ConfigError, match="convert the model before wrapping it"):
        model.float()
    assert alike(values(net), before)
    model.close()


@pytest.mark.parametrize("how", ["options", "steps"])
def test_workers_that_do_different_things_are_told(stores, how):
    over = at(stores)

    def work(rank):
        net = build(rank)
        rule = torch.optim.SGD(net.parameters(), lr=0.2 if rank and how == "options" else 0.1)
        model = gradtide.DataParallel(
            net, rule, Local(3 if rank and how == "steps" else 2, over=over), job=Job(rank, 2)
        )
        try:
            advance(model, rank, 3)
        finally:
            model._synchroniser.close()

    assert all("a worker took a step that another left out" in str(error) for error in in_threads(2, work))


def test_another_outer_optimizer_than_the_servers_have_is_refused(stores):
    over = at(stores)
    net = build()
    model = gradtide.DataParallel(net, sgd(net), Local(2, NESTEROV, over=over), job=Job())
    advance(model, 0, 2)
    model.close()
    again = Servers("bsp", stores, name=over.name, resume=True)
    with pytest.raises(ConfigError, match="outer sgd"):
        gradtide.DataParallel(net, sgd(net), Local(2, over=again), job=Job())


def test_a_worker_that_goes_on_when_another_has_ended_is_told(stores):
    over, ended = at(stores), threading.Event()

    def work(rank):
        net = build(rank)
        model = gradtide.DataParallel(net, sgd(net), Local(2, over=over), job=Job(rank, 2))
        advance(model, rank, 2)
        if rank:
            model.close()
            ended.set()
            return
        assert ended.wait(30)
        store = model._synchroniser.way.store
        while not store.ended:
            store.keys()  # so that what the coordinator has said is heard
        try:
            advance(model, rank, 2, 2)
        finally:
            model._synchroniser.close()

    error, nothing = in_threads(2, work)
    assert "worker 1 has taken its last step" in str(error)
    assert nothing is None


@pytest.mark.parametrize("steps", [(8, 4), (4, 5), (3, 0), (4, 4, 8), pytest.param((9, 8, 9), marks=pytest.mark.slow)])
def test_a_window_that_another_worker_was_not_in_at_all_is_told_at_the_end(stores, steps):
    over = at(stores)

    def work(rank):
        net = build(rank)
        model = gradtide.DataParallel(net, sgd(net), Local(4, over=over), job=Job(rank, len(steps)))
        try:
            advance(model, rank, steps[rank])
            model._synchroniser.finish()
        finally:
            model._synchroniser.close()

    for rank, found in enumerate(in_threads(len(steps), work)):
        if steps[rank] > min(steps):
            assert "has taken its last step" in str(found)
        else:
            assert found is None
