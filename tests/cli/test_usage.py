"""A mistake in the words of a command: one line that says what to write, and exit code 2, for every command alike."""

import sys

import pytest

from gradtide.cli import main

MISTAKES = {
    "run --workers two x.py": "--workers two: a whole number is wanted; see gradtide run -h",
    "run --workers=two x.py": "--workers two: a whole number is wanted; see gradtide run -h",
    "run --wrokers 2 x.py": "no such option --wrokers (did you mean --workers?); see gradtide run -h",
    "run --nproc_per_node 2 x.py": "no such option --nproc_per_node; say --workers 2; see gradtide run -h",
    "run": "SCRIPT is missing; see gradtide run -h",
    "rnu": "no such command 'rnu' (did you mean run?); see gradtide -h",
    "bench trian": "no such command 'trian' (did you mean train?); see gradtide bench -h",
    "--versio": "no such option --versio (did you mean --version?); see gradtide -h",
    "train --epochs 1.5": "--epochs 1.5: a whole number is wanted; see gradtide train -h",
    "train --lr abc": "--lr abc: a number is wanted; see gradtide train -h",
    "train --batch-size": "--batch-size needs a value; see gradtide train -h",
    "train --json=3": "--json takes no value; see gradtide train -h",
    "scale x y": "got unexpected extra arguments (y); see gradtide scale -h",
    "store get": "ADDRESS is missing; see gradtide store get -h",
    "plan": "TOPOLOGY is missing: a preset or a file; see gradtide plan -h",
    "plan dgx2 --sise 1": "no such option --sise (did you mean --size?); see gradtide plan -h",
    "plan dgx2 dgx1": "got unexpected extra arguments (dgx1); see gradtide plan -h",
    "plan dgx2 --size": "--size needs a value; see gradtide plan -h",
    "plan dgx2 --json=3": "--json takes no value; see gradtide plan -h",
    "plan dgx2 --size -5": "'-5' is negative; a size must not be",
    "chaos --kills -1": "--kills -1 makes no sense; give 0 or more",
    "chaos --workers 0": "--workers 0 makes no sense; give 1 or more",
}


def gradtide(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradtide", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.quick
@pytest.mark.parametrize(("words", "line"), MISTAKES.items())
def test_a_mistake_in_the_words_is_one_line_that_says_what_to_write(monkeypatch, capsys, words, line):
    assert gradtide(words, monkeypatch) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"gradtide: {line}\n")


def test_a_group_of_commands_alone_shows_its_help(monkeypatch, capsys):
    assert gradtide("bench", monkeypatch) == 2
    assert "Commands:" in capsys.readouterr().err


def test_the_help_of_plan_looks_as_that_of_other_commands_does(monkeypatch, capsys):
    shapes = []
    for command in ("plan", "split"):
        assert gradtide(f"{command} -h", monkeypatch) in (0, None)
        lines = capsys.readouterr().out.splitlines()
        headings = [line for line in lines[1:] if line and not line.startswith(" ")]
        shapes.append([*headings, *lines[-1].split()])
        assert lines[0].startswith(f"Usage: gradtide {command} [OPTIONS] ")
    assert shapes[0] == shapes[1]
