"""The table of every command."""

import doctest

from gradtide.cli import table
from gradtide.cli.table import print_table, table_lines


def test_the_example_of_the_file_runs():
    failed, tried = doctest.testmod(table)
    assert (failed, tried) == (0, 1)


def test_figures_stand_right_whatever_their_unit_and_words_left():
    rows = [("2 threads", 1_000, "15.01 ms", "+8%", "alive"), ("plain", 7, "780 us", "-12%", "none")]
    assert table_lines(("", "count", "time", "slower", "state"), rows) == [
        "            count      time  slower  state",
        " 2 threads   1000  15.01 ms     +8%  alive",
        " plain          7    780 us    -12%  none",
    ]


def test_a_figure_that_is_missing_does_not_turn_its_column():
    assert table_lines(("mode", "mean"), [("bsp", "-"), ("async", "12.5"), ("?", "?")]) == [
        " mode   mean", " bsp       -", " async  12.5", " ?         ?"
    ]  # fmt: skip
    assert table_lines(("mode", "mean"), [("bsp", "-")]) == [" mode  mean", " bsp   -"]


def test_a_table_without_rows_has_its_headings():
    assert table_lines(("key", "shape"), []) == [" key  shape"]


def test_words_in_the_last_column_are_folded_where_the_terminal_ends():
    rows = [("ring:N", "N devices in a circle, each wired to the next"), ("star:N", "one hub")]
    assert table_lines(("name", "what it is"), rows, width=32) == [
        " name    what it is",
        " ring:N  N devices in a circle,",
        "         each wired to the next",
        " star:N  one hub",
    ]
    assert len(table_lines(("name", "what it is"), rows, width=20)) == 3, "so narrow that folding helps nobody"


def test_what_goes_to_no_terminal_is_plain_text(capsys):
    print_table(("worker", "step"), [(0, 12), (1, 9)], "so far")
    assert capsys.readouterr().out == "so far\n worker  step\n      0    12\n      1     9\n"
