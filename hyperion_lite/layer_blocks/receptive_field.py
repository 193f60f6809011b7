"""Arithmetic of receptive fields along time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ReceptiveField:
    """Output ``t`` depends on inputs ``t * stride - left`` ... ``t * stride + right``.

    Attributes:
        left: input positions before ``t * stride``.
        right: input positions after ``t * stride``.
        stride: input positions per output position.
    """

    left: int = 0
    right: int = 0
    stride: int = 1

    def then(self, following: ReceptiveField) -> ReceptiveField:
        """The field of ``following`` applied to the output of this one."""
        return ReceptiveField(
            self.left + self.stride * following.left,
            self.right + self.stride * following.right,
            self.stride * following.stride,
        )

    def beside(self, other: ReceptiveField) -> ReceptiveField:
        """The field of a sum or concatenation of this part and ``other``, which reads the same input at the same stride."""
        if self.stride != other.stride:
            raise AssertionError(f"parallel parts of stride {self.stride} and {other.stride}")
        return ReceptiveField(max(self.left, other.left), max(self.right, other.right), self.stride)

    @staticmethod
    def window(kernel_size: int, stride: int = 1, dilation: int = 1, padding: int = 0) -> ReceptiveField:
        """The field of a convolution or pooling."""
        return ReceptiveField(padding, dilation * (kernel_size - 1) - padding, stride)

    @staticmethod
    def of(module: nn.Module) -> ReceptiveField:
        """The field of a convolution, or of a module that has the property ``receptive_field``; anything else is pointwise."""
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            return ReceptiveField.window(*time_settings(module))
        field = getattr(module, "receptive_field", None)
        return field if isinstance(field, ReceptiveField) else ReceptiveField()


def time_settings(conv: nn.Conv1d | nn.Conv2d) -> tuple[int, int, int, int]:
    """Kernel size, stride, dilation and padding of a convolution along time, the last axis."""
    if isinstance(conv.padding, str):
        raise ValueError("only convolutions with numeric padding are supported here")
    return conv.kernel_size[-1], conv.stride[-1], conv.dilation[-1], conv.padding[-1]
