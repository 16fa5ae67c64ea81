"""A Wasserstein GAN whose critic's weights are clipped after every step: two models, two optimizers, edited parameters.

    python examples/wgan.py                             # one process
    gradtide run --workers 2 examples/wgan.py           # two workers, each with half of every batch
    torchrun --nproc-per-node 2 examples/wgan.py        # the same

Lines that end in "# gradtide" make the difference. Without them this is the program for one process, and with them two
workers end with the parameters that one process would have (`--exact` computes in float64, where one can see that).
"""

import argparse
import math
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import gradtide  # gradtide

NOISE, WIDTH, BATCH = 4, 32, 51  # the batch of all workers together; parts may differ by a sample
CRITIC_STEPS, CLIP = 5, 0.1  # of the critic for each of the generator; the largest weight
IS_FIRST = os.environ.get("RANK", "0") == "0"  # gradtide run and torchrun number their processes; one of them prints


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, outputs),
    )


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points near a circle, and the noise to make others from.

    Noise is part of the batch, and so is cut with it: worker 1 gets the second half of it, as it would have been in one
    process. Drawn in the loop, it would be another number of draws for another number of workers.
    """
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        angle = torch.rand(BATCH, generator=draw) * 2 * math.pi
        circle = torch.stack([angle.cos(), angle.sin()], 1)
        yield circle + 0.05 * torch.randn(BATCH, 2, generator=draw), torch.randn(BATCH, NOISE, generator=draw)


def main() -> nn.Module:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--exact", action="store_true", help="compute in float64")
    chosen = options.parse_args()
    if chosen.exact:
        torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    generator, critic = mlp(NOISE, 2), mlp(2, 1)
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    data = batches(chosen.steps)

    # Each model with its own optimizer; or one model that holds both, with a list of optimizers.
    generator = gradtide.DataParallel(generator, for_generator)  # gradtide
    critic = gradtide.DataParallel(critic, for_critic)  # gradtide
    data = gradtide.shard(data)  # gradtide

    for step, (real, noise) in enumerate(data):
        with torch.no_grad():
            made = generator(noise)
        distance = critic(real).mean() - critic(made).mean()
        (-distance).backward()
        for_critic.step()
        for_critic.zero_grad()
        # Every worker has the whole parameters here and clips them alike. Were they shared between the workers of a
        # host (see explain()), this would go into `with critic.edit():`, and gradtide says so rather than clip twice.
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-CLIP, CLIP)

        if step % CRITIC_STEPS == CRITIC_STEPS - 1:
            (-critic(generator(noise)).mean()).backward()  # goes through the critic, whose gradients are thrown away
            for_generator.step()
            for_generator.zero_grad()
            for_critic.zero_grad()
        if IS_FIRST and step % 50 == 49:
            # With several workers these are numbers of the first one's part, as under DDP.
            radius = made.norm(dim=1).mean().item()
            print(f"step {step + 1}: distance {distance.item():.4f}, mean radius {radius:.2f}")
    return nn.ModuleList([generator, critic])


if __name__ == "__main__":
    main()
