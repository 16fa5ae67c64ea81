import textwrap

import pytest


@pytest.fixture
def script(tmp_path):
    """Writes a script; returns its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write
