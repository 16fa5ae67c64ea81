"""Small models and programs, drawn at random: each gives what one process gives, or is refused by name, on every way.

200 of them in every run; `scripts/test -m slow -k random_programs` runs 10,000. A failing one is printed as data, as
small as Hypothesis can make it: put it into REGRESSIONS, where it stays. Run with -s for a table of what was refused.
"""

from collections import Counter

import pytest
import random_programs
import torch
import training
from drawn_programs import WORDS, cases, words_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_layers import SPARSE
from random_moves import NOT_OVER_SERVERS
from ranks import Failed
from refused_programs import reason_of

import gradtide

ATOL = 1e-10
REFUSED_AT_MOST, REFUSED_OF_A_MOVE = 0.15, 0.3  # of all programs; of those of one way that have one move, or layer
SEEN_ENOUGH = 20  # of those, before a share is one
BY_DESIGN = {  # where no worker has the whole gradient, nobody can look at it; nor can sparse ones be shared
    *(("clipping", way) for way in ("auto", "shared", "servers")),
    *((kind, "shared") for kind in (*SPARSE, "several optimizers")),
    *((move, way) for move in NOT_OVER_SERVERS for way in ("servers", "servers that average")),
}
FAILURES_AT_MOST = 3  # then it is time to look

PROGRAMS = {"auto": 30, "shared": 20, "all-reduce": 50, "ring": 20, "servers": 20, "servers that average": 20}
PROGRAMS |= {"local": 15, "compressed": 15, "lossy": 10}
_SGD = {"kind": "SGD", "lr": 0.1, "groups": [{"layers": [0]}]}
_TWO = {"optimizers": [{**_SGD, "groups": [{"layers": [0, 1]}]}]}
_CLIP = {"do": "clip value", "by": 0.05}
_KEPT = {"size": 4, "no_sync": True}
_CALM = [{"backwards": [{"size": 5}]}] * 4  # after which gradients leave early over servers
_UNFREEZE = {"backwards": [{"size": 5}], "step": "not yet", "after": [{"do": "unfreeze"}]}
_KEEP_AND_UNFREEZE = {**_UNFREEZE, "backwards": [{"size": 5, "no_sync": True}]}
_EDIT_AND_FREEZE = {"backwards": [{"size": 5}], "after": [{"do": "shrink"}, {"do": "freeze"}]}
_KEEP_AND_FREEZE = {**_KEEP_AND_UNFREEZE, "after": [{"do": "freeze"}]}
REGRESSIONS = [
    {"way": way, "workers": 2, "optimizers": [_SGD], **case}
    for way in ("auto", "shared", "all-reduce", "ring", "servers", "servers that average")
    for case in (
        # a backward in no_sync after one outside of it stayed each worker's own
        {"steps": [{"backwards": [{"size": 6}, {"size": 4, "no_sync": True}]}]},
        # our own clipping was taken for an edit
        {"clip_norm": 0.05, "steps": [{"backwards": [{"size": 5, "no_sync": True}]}]},
        # others' buffers were those of a step before, over servers
        {"buffer": "in place", "steps": [{"backwards": [{"size": 1}]}, {"backwards": [{"size": 2}]}]},
        # nobody has a term, but there is a penalty; one that has no sample counted the terms of another's
        {"seed": 2, "steps": [{"backwards": [{"size": 1, "loss": "tokens", "decay": True}]}]},
        {
            "steps": [
                {"backwards": [{"size": 2, "loss": "tokens"}]},
                {"backwards": [{"size": 6, "loss": "tokens", "decay": True}]},
            ]
        },
        # the weight of one backward was the next one's too
        {"steps": [{"backwards": [{"size": 6, "loss": "tokens"}, {"size": 3}]}]},
        # a hook that came after ours was ignored
        {"hooks": [{"on": "accumulated", "late": True}], "steps": [{"backwards": [{"size": 5}]}]},
        # a part of a gradient was edited, and then added to
        {"steps": [{"backwards": [{"size": 5, "no_sync": True, "then": [_CLIP]}, {"size": 4}]}]},
        {"steps": [{"backwards": [{"size": 5, "then": [_CLIP]}, {"size": 4}]}]},
        {
            "steps": [
                {
                    "backwards": [
                        {"size": 5, "no_sync": True, "then": [{"do": "zero"}]},
                        {"size": 1, "no_sync": True},
                        {"size": 1},
                    ]
                }
            ]
        },
        {"workers": 1, "steps": [{"backwards": [{"size": 5, "no_sync": True}], "then": [_CLIP]}]},
        # over servers weigh() was forgotten in a forward that found another layer to train
        {
            "layers": [{}],
            "optimizers": [{**_SGD, "groups": [{"layers": [0, 1]}]}],
            "steps": [
                {"backwards": [{"size": 2}], "after": [{"do": "freeze"}]},
                {"backwards": [{"size": 1, "loss": "class weights"}]},
            ],
        },
        # gradients that were zeroed, and not forgotten, were taken for some of another measure
        {"steps": [{"backwards": [{"size": 3}], "step": "zeros"}, {"backwards": [{"size": 1, "loss": "tokens"}]}]},
        # gradients left early that a backward gives twice, which had all been in no_sync before
        {
            **_TWO,
            "layers": [{}, {"tied": True, "checkpoint": "reentrant"}],
            "steps": [*[{"backwards": [_KEPT]}] * 4, {"backwards": [{"size": 5}]}],
        },
        # a hook changed what was there before too, but not on a worker whose backward added nothing to it
        {
            "optimizers": [{**_SGD, "groups": [{"layers": [0, 1, 2]}]}],
            "seed": 1,
            "layers": [{"use": "some samples"}, {}],
            "hooks": [{"on": "accumulated"}],
            "steps": [{"backwards": [{"size": 1}]}, {"backwards": [{"size": 6}, {"size": 2}]}],
        },
        # … but nothing was there before if it was zeroed
        {"hooks": [{"on": "accumulated"}], "steps": [{"backwards": [{"size": 3}], "step": "zeros"}] * 2},
        # a step hook that came after the model was wrapped was never called on shared parameters and over servers
        {"hooks": [{"on": "after step", "late": True}], "steps": [{"backwards": [{"size": 5}]}] * 2},
        # a rate that was changed before a layer was frozen, or while it was, was never told to the servers
        {
            **_TWO,
            "layers": [{}],
            "scheduler": {"kind": "StepLR"},
            "steps": [
                *[{"backwards": [{"size": 5}]}] * 2,
                {"backwards": [{"size": 5}], "after": [{"do": "freeze"}]},
                *[{"backwards": [{"size": 5}]}] * 3,
                {"backwards": [{"size": 5}], "after": [{"do": "unfreeze"}]},
                {"backwards": [{"size": 5}]},
            ],
        },
        # an edit of shared parameters after the last step was never noticed
        {"steps": [{"backwards": [{"size": 1}], "after": [{"do": "shrink"}]}]},
        # one worker's new optimizer stepped gradients that were not clipped
        {
            **_TWO,
            "workers": 1,
            "layers": [{}],
            "clip_norm": 0.05,
            "steps": [
                {"backwards": [{"size": 1}], "after": [{"do": "new optimizer"}]},
                {"backwards": [{"size": 1}]},
            ],
        },
        # … nor one after which another layer was to be trained
        {**_TWO, "layers": [{}], "steps": [_EDIT_AND_FREEZE, {"backwards": [{"size": 1}]}]},
        # gradients of several batches, in some of which a worker has no part, or which some workers keep from before
        {"steps": [{"backwards": [{"size": 5, "no_sync": True}, {"size": 1}]}]},
        {**_TWO, "layers": [{"use": "some samples"}], "steps": [{"backwards": [{"size": 5}, _KEPT, {"size": 1}]}]},
        # gradients were clipped of which some were another worker's alone until somebody looked at the others
        {
            **_TWO,
            "layers": [{"use": "some samples"}],
            "steps": [{"backwards": [{"size": 1}]}, {"backwards": [{"size": 2, "then": [_CLIP]}]}],
        },
        # what a gradient that stays counts was forgotten when a layer was unfrozen
        {**_TWO, "layers": [{"frozen": True}], "steps": [_KEEP_AND_UNFREEZE, {"backwards": [{"size": 3}]}]},
        {**_TWO, "layers": [{"frozen": True}], "steps": [*_CALM, _UNFREEZE, {"backwards": [{"size": 1}]}]},
        # a layer was frozen that had a gradient, which each worker's optimizer would have stepped with its own part
        {**_TWO, "layers": [{}], "steps": [_KEEP_AND_FREEZE, {"backwards": [{"size": 1}]}]},
    )
]

REGRESSIONS.append(
    {  # with Local too weigh() was forgotten in a forward that found another layer to train
        "way": "local",
        "workers": 2,
        "layers": [{}, {}],
        "optimizers": [{**_SGD, "groups": [{"layers": [0, 1, 2]}]}],
        "steps": [
            {"backwards": [{"size": 1}]},
            {"backwards": [{"size": 1}], "after": [{"do": "freeze"}]},
            {"backwards": [{"size": 2, "loss": "class weights"}]},
        ],
    }
)


class Runner:
    """Runs cases in processes that stay, and servers that stay until something was refused."""

    def __init__(self, workers, forks):
        self._workers, self._forks, self._servers = workers, forks, None
        self.drawn, self.refused, self.words, self.refused_words = 0, Counter(), Counter(), Counter()

    def check(self, case):
        """Runs it, and counts it."""
        found, wanted = self._run(case)
        self.drawn += 1
        self.words.update(words_of(case))
        refusals = [refusal for _, refusal in found if refusal]
        if refusals:
            self.refused[reason_of(case, refusals)] += 1
            self.refused_words.update(words_of(case))
        if case["way"] == "lossy":
            found, wanted = found[1:], [(label, seen) for label, seen in found[0][0] if label != "validation"]
            assert all(bool(t.double().isfinite().all()) for _, seen in wanted for t in seen)
            found = [([seen for seen in trace if seen[0] != "validation"], refusal) for trace, refusal in found]
        compare(found, wanted)

    def _run(self, case):
        """The trace and the refusal, or None, of each worker; and meanwhile the trace of one process."""
        address = self._address() if case["way"].startswith("servers") else None
        found = []
        self._workers.start(random_programs.run_one, case["workers"], training.new_name(), case, address)
        try:
            try:
                wanted = random_programs.run_alone(case)
            finally:
                found = self._workers.answers(case["workers"])
            return found, wanted
        finally:
            if address is not None and (not found or any(refusal for _, refusal in found)):
                self.close()

    def _address(self):
        if self._servers is None:
            self._servers = gradtide.local_servers(1, forks=self._forks)
        return self._servers.address

    def close(self):
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.close()

    def table(self):
        rows = [f"{count} ({count / self.drawn:.1%}) refused: {reason}" for reason, count in self.refused.most_common()]
        return "\n    ".join([f"{self.drawn} programs, {self.refused.total()} refused", *rows])

    def often_refused(self, way):
        """What programs have of which too many are refused, as text."""
        shares = {word: self.refused_words[word] / count for word, count in self.words.items() if count >= SEEN_ENOUGH}
        return [f"{w}: {s:.0%}" for w, s in shares.items() if s > REFUSED_OF_A_MOVE and (w, way) not in BY_DESIGN]

    def table_of_words(self):
        both = [(self.refused_words[word] / count, word, count) for word, count in self.words.items()]
        return "\n    ".join(
            f"{share:4.0%} of {count} with {word}" for share, word, count in sorted(both, reverse=True)
        )


def compare(found, wanted):
    """What was seen before a refusal is as right as what is seen in the end."""
    seen = min((len(trace) for trace, refusal in found if refusal), default=len(wanted))
    for worker, (trace, _) in enumerate(found):
        for (label, ours), (same, theirs) in zip(trace[:seen], wanted[:seen], strict=True):
            assert label == same
            assert len(ours) == len(theirs), f"{label}: worker {worker} has {len(ours)} of {len(theirs)}"
            for a, b in zip(ours, theirs, strict=True):
                assert a.shape == b.shape, f"{label}: {a.shape} on worker {worker} instead of {b.shape}"
                off = float((a - b).abs().max()) if a.numel() else 0.0
                near = torch.allclose(a.double(), b.double(), rtol=ATOL, atol=ATOL)
                assert near, f"{label}: worker {worker} is off by {off:.3g}"


@pytest.fixture
def runner(workers, forks):
    made = Runner(workers, forks)
    yield made
    made.close()


def run_many(runner, way, numbers):
    """What failed, as text. Each is drawn afresh: by itself Hypothesis spends five of six on variants of the last."""
    passed, failures = [], []

    @settings(
        max_examples=2,  # the first is always the simplest there is
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(case=cases(way))
    def one(case):
        if [case] != passed[:1]:
            runner.check(case)
            passed.append(case)

    for number in numbers:
        try:
            seed(number)(one)()
        except (AssertionError, Failed) as error:
            failures.append("\n".join([f"{way}, seed {number}: {error}", *getattr(error, "__notes__", [])]))
            print(f"\n{failures[-1]}", flush=True)
            if len(failures) == FAILURES_AT_MOST:
                break
    return failures


@pytest.fixture(scope="module")
def totals():
    """Of all ways: how many programs, and how many of them were refused."""
    return Counter()


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", PROGRAMS)
def test_random_programs_give_what_one_process_gives_or_are_refused_by_name(runner, totals, way, times):
    first = 1_000_000 * list(PROGRAMS).index(way)
    failures = run_many(runner, way, range(first, first + PROGRAMS[way] * times))
    print(f"\n{way}: {runner.table()}\n    {runner.table_of_words()}")
    assert not failures, "\n\n".join(failures)
    totals["drawn", times] += runner.drawn
    totals["refused", times] += runner.refused.total()
    assert not (often := runner.often_refused(way)), f"{way} refuses too many: {often}"
    if way == "all-reduce":  # which takes all there is
        assert not (left_out := WORDS.keys() - runner.words.keys()), f"never drawn: {sorted(left_out)}"
        assert runner.refused.total() <= REFUSED_AT_MOST * runner.drawn, f"too many are refused: {runner.table()}"


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_few_of_all_of_them_were_refused(totals, times):
    drawn, refused = totals["drawn", times], totals["refused", times]
    print(f"\n{drawn} programs, {refused} refused")
    assert refused <= REFUSED_AT_MOST * drawn


def test_a_model_that_has_taken_no_step_is_closed_without_a_word_on_servers_that_had_another_one(runner):
    case = {"way": "servers that average", "workers": 2, "optimizers": [_SGD]}
    for _ in range(10):  # every other one was refused for steps that nobody had taken
        runner.check({**case, "steps": [{"backwards": [{"size": 4}]}]})
        runner.check({**case, "steps": [{"backwards": [_KEPT], "step": "not yet"}]})


@pytest.mark.parametrize("case", REGRESSIONS)
def test_a_program_that_once_went_wrong(runner, case):
    runner.check(case)
