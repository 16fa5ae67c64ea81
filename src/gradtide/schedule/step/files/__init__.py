"""Layouts and steps as JSON and back; whatever is wrong in a text is refused in one line.

layout_json.py  a layout as JSON and back, and what it must be
step_json.py    a step as JSON and back
json_data.py    frozen data as JSON and back, by its types
"""

from gradtide.schedule.step.files.layout_json import check_layout, layout_from_json, layout_to_json, save_layout
from gradtide.schedule.step.files.step_json import step_from_json, step_to_json

__all__ = ["check_layout", "layout_from_json", "layout_to_json", "save_layout", "step_from_json", "step_to_json"]
