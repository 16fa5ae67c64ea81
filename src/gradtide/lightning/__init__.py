"""Lightning's Trainer over gradtide: `Trainer(strategy=GradtideStrategy())`, or "gradtide" once this is imported.

sharing.py   whether a Trainer leaves gradients alone, so that parameters may be shared
strategy.py  the strategy
"""

from gradtide.errors import ConfigError

try:
    from lightning.pytorch.strategies import StrategyRegistry
except ModuleNotFoundError:
    raise ConfigError("gradtide.lightning needs Lightning: pip install 'gradtide[lightning]'") from None

from gradtide.lightning.strategy import GradtideStrategy

__all__ = ["GradtideStrategy"]

if "gradtide" not in StrategyRegistry:
    StrategyRegistry.register("gradtide", GradtideStrategy, description="Gradients go over gradtide, as under DDP")
