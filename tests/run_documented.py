"""Runs blocks of a page as one program: `python run_documented.py FILE`. A traceback names the page's lines.

FILE is JSON: a list of programs, each a list of parts [page, line, text]. A program has a namespace of its own.
"""

import json
import sys


def run(programs: list[list[tuple[str, int, str]]]) -> None:
    for parts in programs:
        names = {"__name__": "__main__"}
        for page, line, text in parts:
            exec(compile("\n" * (line - 1) + text, page, "exec", dont_inherit=True), names)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        run(json.load(file))
