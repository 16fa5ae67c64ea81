"""Help of every command: `-h` works as `--help` does, and no sentence is cut off."""

import pytest
import typer
from typer.testing import CliRunner

from gradtide.cli.app import app


def all_commands(command, words=()):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, (*words, name))


COMMANDS = sorted(all_commands(typer.main.get_command(app)))


@pytest.mark.quick
def test_every_command_has_its_help_and_no_sentence_of_it_is_cut_off():
    assert len(COMMANDS) > 35
    for words in COMMANDS:
        short, long = (CliRunner().invoke(app, [*words, option], terminal_width=80) for option in ("-h", "--help"))
        assert short.exit_code == 0, words
        assert short.output == long.output
        assert "..." not in short.output.partition("Commands:")[2], words
