"""Under `gradtide run`: trains with Lightning over gradtide, then by DDP over Gloo, and compares every parameter."""

import functools
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradtide.lightning  # "gradtide" is the name of a strategy from here on

warnings.filterwarnings("ignore")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Small(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0].to(self.net[0].weight.dtype)), batch[1])

    def validation_step(self, batch, index):
        self.log("val", nn.functional.mse_loss(self.net(batch[0]), batch[0][:, :3]), sync_dist=True)

    def on_train_end(self):
        if isinstance(self.trainer.strategy, gradtide.lightning.GradtideStrategy):
            said = self.trainer.strategy.explain()
            hindered = self.trainer.gradient_clip_val or not self.automatic_optimization or averages(self.trainer)
            hindered = hindered or isinstance(self, Clamped)
            expected = "one worker" if self.trainer.world_size == 1 else "not shared" if hindered else "are shared"
            assert expected in said, said

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Averaged(Small):
    """Is drawn towards an average, which it makes of aliases that it took before it was wrapped."""

    def on_fit_start(self):
        self.live = list(self.net.state_dict().values())
        self.averages = [value.clone() for value in self.live]

    def training_step(self, batch, index):
        pairs = zip(self.net.parameters(), self.averages, strict=True)
        return super().training_step(batch, index) + sum((p - average).square().sum() for p, average in pairs)

    def on_train_batch_end(self, *arguments):
        torch._foreach_lerp_(self.averages, self.live, 0.2)


class Clamped(Averaged):
    """Its hook changes parameters, from the sixth step on."""

    def on_train_batch_end(self, *arguments):
        super().on_train_batch_end()
        if self.global_step >= 6:
            for parameter in self.net.parameters():
                parameter.data.clamp_(-0.3, 0.3)


class SinglePrecision(Small):
    def __init__(self):
        super().__init__()
        self.net.float()


class Failing(Small):
    """On one worker, when parameters are shared."""

    def training_step(self, batch, index):
        if self.global_rank == 1 and self.global_step == 5:
            raise ValueError("boom")
        return super().training_step(batch, index)


class Adversaries(Small):
    """Several optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Linear(3, 1).double()

    def training_step(self, batch, index):
        first, second = self.optimizers()
        self.toggle_optimizer(second)
        loss = (self.critic(self.net(batch[0]).detach()) - 1).square().mean()
        self.manual_backward(loss)
        self.clip_gradients(second, 0.3, "norm")
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)
        self.toggle_optimizer(first)
        loss = self.critic(self.net(batch[0])).square().mean()
        self.manual_backward(loss)
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)

    def configure_optimizers(self):
        return [torch.optim.Adam(self.net.parameters(), lr=0.01), torch.optim.SGD(self.critic.parameters(), lr=0.1)]


def averages(trainer):
    return any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks)


def averaged(make, folder):
    return train(make, callbacks=[StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)])[1]


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(48, 6, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(x, torch.randint(3, (48,), generator=generator)), batch_size=4, shuffle=True)


def train(make, module=Small, resume=None, **options):
    pl.seed_everything(5, verbose=False)
    model = module()
    options = {"max_epochs": 3, "enable_checkpointing": False} | options
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(accelerator="cpu", devices=workers, strategy=make(), **QUIET, **options)
    trainer.fit(model, data(), data() if module is Small else None, ckpt_path=resume)
    metrics = [value.double().reshape(1) for value in trainer.callback_metrics.values()]
    return trainer, torch.cat([*(p.detach().double().flatten() for p in model.parameters()), *metrics])


def resumed(make, folder):
    trainer, _ = train(make, max_steps=9, max_epochs=-1)
    path = folder / f"{type(trainer.strategy).__name__}.ckpt"
    trainer.save_checkpoint(path)
    return train(make, resume=path)[1]


CASES = {
    "plain": lambda make, folder: train(make)[1],
    "clipped and accumulated": lambda make, folder: train(make, gradient_clip_val=0.1, accumulate_grad_batches=2)[1],
    "accumulated": lambda make, folder: train(make, accumulate_grad_batches=3)[1],
    "bf16": lambda make, folder: train(make, module=SinglePrecision, precision="bf16-mixed")[1],
    "resumed": resumed,
    "averaged": averaged,
    "manual": lambda make, folder: train(make, module=Adversaries)[1],
    "aliased": lambda make, folder: train(make, module=Averaged)[1],
    "clamped later": lambda make, folder: train(make, module=Clamped)[1],
}
STRATEGIES = {
    "gradtide": lambda: gradtide.lightning.GradtideStrategy(sync="auto"),
    "gloo": lambda: pl.strategies.DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
}


def refused(text, make):
    with pytest.raises(gradtide.errors.ConfigError, match=rf"^[^\n]*{text}[^\n]*$"):
        make()


def check_refusals():
    refused("whose checkpoints would leave out", lambda: gradtide.lightning.GradtideStrategy(gradtide.Local(5)))
    refused("static_graph= is for DDP", lambda: gradtide.lightning.GradtideStrategy(static_graph=True))
    sharing = functools.partial(gradtide.lightning.GradtideStrategy, share_parameters=True)
    refused("gradients are clipped", lambda: train(sharing, gradient_clip_val=0.1))


def main(folder, names):
    check_refusals()
    found = {}
    for kind, make in STRATEGIES.items():
        for name in names:
            by_name = (kind, name) == ("gradtide", "plain")
            found[kind, name] = CASES[name]((lambda: "gradtide") if by_name else make, folder)
        assert dist.get_backend() == kind, dist.get_backend()
        dist.destroy_process_group()
    for name in names:
        difference = (found["gradtide", name] - found["gloo", name]).abs().max().item()
        print(f"{name}: differs by {difference:g}")
        assert difference < (1e-2 if name == "bf16" else 1e-10), name
    print("equal")


if __name__ == "__main__":
    if sys.argv[2:] == ["failing"]:
        train(STRATEGIES["gradtide"], module=Failing)
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
