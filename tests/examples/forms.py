"""Other forms of the examples, made mechanically: without gradtide's lines, and with other arguments in them."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "examples"
MARK = "  # gradtide"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if f"{MARK}\n" in path.read_text())
WRAP = re.compile(r"^ *(\w+) = gradtide\.DataParallel\(\1, (\w+)\)  # gradtide$", re.MULTILINE)

# What follows the optimizer when the model is wrapped, and whether the model steps instead of the optimizer.
WAYS = {
    "auto": ("", False),
    "all-reduce": ("share_parameters=False", False),
    "shared": ("share_parameters=True", True),
    "servers": ('gradtide.Servers("bsp", name="NAME")', True),
    "servers that average": ('gradtide.Servers("bsp", name="NAME"), share_parameters=False', False),
}
# Two change gradients or parameters by hand, for which every worker needs the whole of them; and servers train one
# model of a worker at a time, where the GAN has two.
NOT_ON = {"nano_gpt": ("shared", "servers"), "wgan": ("shared", "servers", "servers that average")}
CASES = [(name, way) for name in NAMES for way in WAYS if way not in NOT_ON.get(name, ())]
ARGUMENTS = {"nano_gpt": "--steps 8", "wgan": "--steps 30", "padded_words": "--epochs 1", "digits": "--epochs 2"}


def text_of(name):
    return (FOLDER / f"{name}.py").read_text()


def plain(text):
    """As it is for one process."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.endswith(f"{MARK}\n"))


def along(name, way):
    """With the arguments that this way needs."""
    text, (more, model_steps) = text_of(name), WAYS[way]
    for model, optimizer in WRAP.findall(text):
        arguments = f", {more.replace('NAME', f'{name} {model} {way}')}" if more else ""
        text = text.replace(f"DataParallel({model}, {optimizer})", f"DataParallel({model}, {optimizer}{arguments})")
        if model_steps:
            text = re.sub(rf"^ *{optimizer}\.zero_grad\(\)\n", "", text, flags=re.MULTILINE)
            text = text.replace(f"{optimizer}.step()", f"{model}.step()")
    return text


def arguments_of(name):
    return ["--exact", *ARGUMENTS.get(name, "--epochs 1").split()]
