"""Proves that a step is right: every sample's gradient counts once, nothing is read before it is there, it ends.

words.py      a task in words, for errors
index.py      every task found by what it does; none twice
coverage.py   the samples of every stage, shard and segment: each exactly once
flow.py       who has to be done before whom: along a stage, between stages
gradients.py  the same for what is added up: sums, the norm, the updates
ancestors.py  which of these pairs no deps order
lanes.py      plays the step with one slot a lane
verify.py     verify_step does all of it
"""

from gradtide.schedule.step.proof.verify import StepProof, verify_step

__all__ = ["StepProof", "verify_step"]
