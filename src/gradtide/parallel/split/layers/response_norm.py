"""Local response normalisation within groups of channels, as AlexNet's two towers had it."""

from torch import Tensor, nn
from torch.nn import functional

from gradtide.errors import ConfigError

__all__ = ["GroupedResponseNorm"]


class GroupedResponseNorm(nn.Module):
    """As nn.LocalResponseNorm, but a channel's neighbours are those of its own group alone."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, groups: int = 2) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k, self.groups = size, alpha, beta, k, groups

    def forward(self, inputs: Tensor) -> Tensor:
        channels = inputs.shape[1]
        if channels % self.groups:
            raise ConfigError(f"{channels} channels can't be normalised in {self.groups} groups of equal size")
        apart = inputs.reshape(len(inputs) * self.groups, channels // self.groups, *inputs.shape[2:])
        return functional.local_response_norm(apart, self.size, self.alpha, self.beta, self.k).reshape(inputs.shape)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}, groups={self.groups}"
