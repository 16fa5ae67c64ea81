"""A step as JSON and back."""

import json

from gradtide.schedule.step.files.json_data import from_json, to_plain
from gradtide.schedule.step.model import StepPlan

__all__ = ["step_from_json", "step_to_json"]

MARK, VERSION = "gradtide_step", 1


def step_to_json(plan: StepPlan) -> str:
    """One task a line, so that a diff of two steps reads well."""
    plain = to_plain(plan)
    tasks = ",\n".join("  " + json.dumps(task) for task in plain.pop("tasks"))
    return json.dumps({MARK: VERSION, **plain})[:-1] + f', "tasks": [\n{tasks}\n]}}\n'


def step_from_json(text: str | bytes, source: str = "step") -> StepPlan:
    """The step in the text; `source` (a file's name, say) opens every error. Not verified yet."""
    return from_json(text, StepPlan, source, MARK, VERSION)
