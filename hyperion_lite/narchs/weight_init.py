"""Initial weights of convolutional networks."""

from __future__ import annotations

from torch import nn


def init_conv_weights(module: nn.Module) -> None:
    """Draw convolution weights from a normal distribution with variance ``2 / fan_in`` and set their biases to zero.

    This keeps the variance of activations constant through layers of rectifiers (He et al., 2015); the other activations of the package
    are close enough for norm layers to take care of the rest. Norm layers keep torch's start, scale 1 and shift 0.
    """
    for part in module.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def init_conv_weights_small(module: nn.Module) -> None:
    """Draw weights of convolutions and linear maps from a normal distribution of deviation 0.02 cut at 2, and set their biases to zero.

    The start of ConvNeXt (Liu et al., 2022, arXiv:2201.03545), whose layer norms take care of the scale.
    """
    for part in module.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
