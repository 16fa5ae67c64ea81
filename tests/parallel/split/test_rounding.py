"""Gradients of nothing but rounding, and optimizers that divide by their size: explain() names what that moves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradtide


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.norm(x)
        heads = (one(y).unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


def gpt(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 8), Block(), Block(), nn.LayerNorm(8), nn.Linear(8, 16)).to(dtype)


def loss_of(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


WORDS = torch.randint(0, 16, (12, 6), generator=torch.Generator().manual_seed(1))
KEYS = {"1.k.bias", "2.k.bias"}
SAID = "Not equal to one device: 1.k.bias and 1 more, whose gradient is nothing but rounding"


def steps(model, optimizer, step, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        step()
        optimizer.step()
    return model.state_dict()


def farthest(one, other, names):
    return max(float((one[name] - other[name]).abs().max()) for name in names)


def whole_and_in_parts(made, dtype, parts):
    """Of one process: the batch at once, and its parts one after the other."""
    whole, cut = gpt(dtype), gpt(dtype)

    def step():
        for words in WORDS.chunk(parts):
            (loss_of(cut(words), words) * len(words) / len(WORDS)).backward()

    expected = steps(whole, made(whole.parameters()), lambda: loss_of(whole(WORDS), WORDS).backward())
    return expected, steps(cut, made(cut.parameters()), step)


@pytest.mark.parametrize("layout", ["..1.out | ..", "x2", "/2"])
@pytest.mark.parametrize("kind", ["Rprop", "Adafactor", "Adam"])
def test_all_but_what_explain_names_is_equal_to_one_process(kind, layout):
    if (kind, layout) == ("Adafactor", "/2"):
        pytest.skip("refused: it looks at whole tensors")
    made = getattr(torch.optim, kind)
    net = gpt(torch.float64)
    model = gradtide.ModelParallel(net, made(net.parameters()), layout, devices=2, micro_batches=2, count=torch.numel)
    for _ in range(3):
        model.step(WORDS, WORDS, loss_of)
    expected, in_parts = whole_and_in_parts(made, torch.float64, 12)
    found, said = model.state_dict(), model.explain()
    model.close()
    assert farthest(found, expected, expected.keys() - KEYS) < 1e-10
    assert farthest(in_parts, expected, expected.keys() - KEYS) < 1e-10
    if kind == "Adam":
        assert "Not equal" not in said
        assert farthest(found, expected, KEYS) < 1e-10
    else:
        assert farthest(in_parts, expected, KEYS) > 1e-8  # one process can't tell either
        assert SAID in said


def test_what_divides_by_less_than_the_rounding_of_its_numbers_is_named_too():
    for dtype, eps, named in ((torch.float32, 1e-8, True), (torch.float64, 1e-8, False), (torch.float64, 1e-30, True)):
        net = gpt(dtype)
        optimizer = torch.optim.AdamW(net.parameters(), eps=eps)
        model = gradtide.ModelParallel(net, optimizer, "x2", devices=2, count=torch.numel)
        model.step(WORDS, WORDS, loss_of)
        assert ("Not equal to one device: 1.k.bias and 1 more" in model.explain()) == named
        model.close()
