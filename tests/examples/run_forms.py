"""Runs every form in a folder, and saves what each has trained: as a script, by workers; called, by one process."""

import os
import runpy
import sys
from pathlib import Path

import torch
from forms import arguments_of

import gradtide


def run_forms(folder):
    for path in sorted(folder.glob("*.py")):
        sys.argv = [str(path), *arguments_of(path.stem.partition(",")[0])]
        trained = runpy.run_path(str(path))["main"]()
        for model in [module for module in trained.modules() if isinstance(module, gradtide.DataParallel)]:
            model.close()
        torch.save(trained.state_dict(), path.with_suffix(f".{os.environ.get('RANK', '0')}.pt"))


if __name__ == "__main__":
    run_forms(Path(sys.argv[1]))
