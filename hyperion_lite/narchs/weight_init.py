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
