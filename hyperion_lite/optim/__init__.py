"""Optimizers out of a configuration."""

from hyperion_lite.optim.factory import OptimizerFactory

__all__ = ["OptimizerFactory"]
