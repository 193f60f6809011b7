"""Output layers of classifiers: logits from embeddings, with an additive margin for the true class while training.

Losses in the strict sense are not here: the logits go to a cross entropy. All layers have the same interface:
``forward(x, y=None)``, ``update_margin(epoch, step)``, ``prototypes()``, ``compute_prototype_affinity()``.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.config import nearest, unknown_choice
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.precision import at_least_float32, autocast_disabled

LossType = Literal["softmax", "cos-softmax", "arc-softmax", "subcenter-arc-softmax"]
LOSS_TYPES: tuple[str, ...] = get_args(LossType)

MARGIN_OPTIONS: tuple[str, ...] = (
    "cos_scale",
    "margin",
    "margin_warmup_epochs",
    "margin_warmup_steps",
    "intertop_k",
    "intertop_margin",
)
"""What can change on an output layer without new tensors."""

_NORM_EPS = 1e-10


def l2_normalise(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``x / (norm + 1e-10)`` along ``dim``; a zero vector stays zero and has a zero gradient.

    The gradient of the formula at zero is 1e10, which no step size survives.
    """
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return torch.where(norm > _NORM_EPS, x / (norm + _NORM_EPS), 0.0)


class SoftmaxOutput(nn.Linear):
    """Plain affine output, ``weight`` (num_classes, in_feats) and ``bias``; it has no margin."""

    num_subcenters = 1

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        """(batch, in_feats) -> logits (batch, num_classes); ``y`` is accepted for the common interface and not used."""
        return super().forward(x)

    @property
    def cur_margin(self) -> float:
        """0: there is no margin."""
        return 0.0

    def change_margins(self, **options: Any) -> None:
        """Nothing to do: there is no margin."""

    def update_margin(self, epoch: float, step: int | None = None) -> None:
        """Nothing to do: there is no margin."""

    def prototypes(self) -> torch.Tensor:
        """(in_feats, num_classes): the weights as columns, detached."""
        return self.weight.detach().T

    def compute_prototype_affinity(self) -> torch.Tensor:
        """Cosine between class prototypes, (num_classes, num_classes) float32, without gradient."""
        return _affinity(self.prototypes())


class CosLossOutput(nn.Module):
    """Cosine output with an additive cosine margin (AM-softmax).

    Logits are ``cos_scale * cos``, cos = clamp(x_n . k_n, -1, 1) with length-normalised embedding x_n and column k_n of ``kernel``. In
    ``train()`` with labels the cosine of the true class becomes cos - m, and, with an inter-top-k margin m' > 0, the ``intertop_k``
    largest cosines of other classes become min(cos + m', 1). In ``eval()``, or without labels, there is no margin.

    The arithmetic is float32 (float64 for float64 input), also under autocast, and free of inverse cosines; gradients are finite at
    cos = +-1 and for zero vectors.

    Args:
        in_feats: dimension of the embedding.
        num_classes: number of classes.
        cos_scale: scale of the cosines.
        margin: margin m of the true class after warm-up.
        margin_warmup_epochs: epochs over which m and m' grow linearly from 0; until the first :meth:`update_margin` they are 0 then.
        intertop_k: number of other classes with margin m'.
        intertop_margin: margin m' after warm-up; 0 for none.
        margin_warmup_steps: as ``margin_warmup_epochs``, in optimizer steps, in place of it when positive.
    """

    num_subcenters = 1

    def __init__(
        self,
        in_feats: int,
        num_classes: int,
        cos_scale: float = 64,
        margin: float = 0.3,
        margin_warmup_epochs: float = 0,
        intertop_k: int = 5,
        intertop_margin: float = 0,
        margin_warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        self.in_feats = in_feats
        self.num_classes = num_classes
        self.cos_scale = cos_scale
        self.margin = margin
        self.margin_warmup_epochs = margin_warmup_epochs
        self.intertop_k = intertop_k
        self.intertop_margin = intertop_margin
        self.margin_warmup_steps = margin_warmup_steps
        self._warmup = 0.0 if margin_warmup_epochs > 0 or margin_warmup_steps > 0 else 1.0
        self.kernel = nn.Parameter(new_prototypes(in_feats, num_classes * self.num_subcenters))

    @property
    def cur_margin(self) -> float:
        """The margin of the true class at the current state of the warm-up."""
        return self.margin * self._warmup

    @property
    def cur_intertop_margin(self) -> float:
        """The inter-top-k margin at the current state of the warm-up."""
        return self.intertop_margin * self._warmup

    def change_margins(self, **options: Any) -> None:
        """Change ``cos_scale``, ``margin``, ``intertop_k``, ``intertop_margin`` or the length of the warm-up.

        A warm-up of another length starts anew, at margin 0; without a warm-up the full margin holds at once.
        """
        warmup = (self.margin_warmup_epochs, self.margin_warmup_steps)
        for name, value in options.items():
            if name not in MARGIN_OPTIONS:
                raise ConfigError(f"{type(self).__name__} has no option {name!r}{nearest(name, MARGIN_OPTIONS)}")
            setattr(self, name, value)
        if self.margin_warmup_epochs <= 0 and self.margin_warmup_steps <= 0:
            self._warmup = 1.0
        elif (self.margin_warmup_epochs, self.margin_warmup_steps) != warmup:
            self._warmup = 0.0

    def update_margin(self, epoch: float, step: int | None = None) -> None:
        """Set the margins for an epoch, or a step.

        The state of the warm-up is not in files: call this when training starts or resumes, and at every epoch or step.

        Args:
            epoch: epochs done so far, counted from 0.
            step: optimizer steps done so far; used when ``margin_warmup_steps`` is positive.
        """
        if self.margin_warmup_steps > 0:
            if step is not None:
                self._warmup = min(1.0, max(0, step) / self.margin_warmup_steps)
        elif self.margin_warmup_epochs > 0:
            self._warmup = min(1.0, max(0, epoch) / self.margin_warmup_epochs)
        else:
            self._warmup = 1.0

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of embeddings.

        Args:
            x: (batch, in_feats), any floating dtype.
            y: (batch,) integer class of each item; gives the margins in ``train()`` and is ignored in ``eval()``.

        Returns:
            (batch, num_classes) float32, or float64 when ``x`` or the kernel is.
        """
        with autocast_disabled(x):
            x, kernel = at_least_float32(x), at_least_float32(self.kernel)
            dtype = torch.promote_types(x.dtype, kernel.dtype)
            cosines = l2_normalise(x.to(dtype), 1) @ l2_normalise(kernel.to(dtype), 0)
            cosines = self._class_cosines(cosines.clamp(-1.0, 1.0), y)
            if self.training and y is not None:
                cosines = self._apply_margins(cosines, y)
            return self.cos_scale * cosines

    def _class_cosines(self, cosines: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """(batch, columns of the kernel) -> (batch, num_classes)."""
        return cosines

    def _apply_margins(self, cosines: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        is_target = F.one_hot(y.long(), self.num_classes).bool()
        result = torch.where(is_target, self._target_margin(cosines, self.cur_margin), cosines)
        k = min(self.intertop_k, self.num_classes - 1)
        if self.cur_intertop_margin > 0 and k > 0:
            others = cosines.detach().masked_fill(is_target, -torch.inf)
            is_top = torch.zeros_like(is_target).scatter_(1, others.topk(k, dim=1).indices, True)
            result = torch.where(is_top, self._other_margin(cosines, self.cur_intertop_margin), result)
        return result

    def _target_margin(self, cosines: torch.Tensor, margin: float) -> torch.Tensor:
        return cosines - margin

    def _other_margin(self, cosines: torch.Tensor, margin: float) -> torch.Tensor:
        return (cosines + margin).clamp(max=1.0)

    def prototypes(self) -> torch.Tensor:
        """(in_feats, num_classes): one prototype per class as a column, detached, not normalised."""
        return self.kernel.detach()

    def compute_prototype_affinity(self) -> torch.Tensor:
        """Cosine between class prototypes, (num_classes, num_classes) float32, without gradient."""
        return _affinity(self.prototypes())

    def extra_repr(self) -> str:
        return (
            f"{self.in_feats}, {self.num_classes}, cos_scale={self.cos_scale}, margin={self.margin}, "
            f"margin_warmup_epochs={self.margin_warmup_epochs}, margin_warmup_steps={self.margin_warmup_steps}, "
            f"intertop_k={self.intertop_k}, intertop_margin={self.intertop_margin}"
        )


class ArcLossOutput(CosLossOutput):
    """Cosine output with an additive angular margin (ArcFace; AAM-softmax).

    As :class:`CosLossOutput`, but the cosine of the true class becomes cos(angle + m) = cos * cos m - sin * sin m, and the largest
    cosines of other classes max(cos, cos(angle - m')).
    """

    def _target_margin(self, cosines: torch.Tensor, margin: float) -> torch.Tensor:
        return cosines * math.cos(margin) - _sine(cosines) * math.sin(margin)

    def _other_margin(self, cosines: torch.Tensor, margin: float) -> torch.Tensor:
        return torch.maximum(cosines, cosines * math.cos(margin) + _sine(cosines) * math.sin(margin))


class SubCenterArcLossOutput(ArcLossOutput):
    """:class:`ArcLossOutput` with several prototypes per class; the cosine of a class is that of its closest one.

    ``kernel`` (in_feats, num_classes * num_subcenters) holds the sub-centres of a class side by side. The buffer ``subcenter_counts``
    (num_classes, num_subcenters) counts how often each was the closest one to an item of its class in training; the sub-centre with the
    largest count is the prototype of the class. A pair of class and sub-centre counts once per batch (of all ranks), and the smallest
    count of each class is subtracted, so that counts do not grow without end.

    Args:
        num_subcenters: prototypes per class.
    """

    # files of early releases lack it
    optional_state_keys = ("subcenter_counts",)
    subcenter_counts: torch.Tensor

    def __init__(
        self,
        in_feats: int,
        num_classes: int,
        num_subcenters: int = 2,
        cos_scale: float = 64,
        margin: float = 0.3,
        margin_warmup_epochs: float = 0,
        intertop_k: int = 5,
        intertop_margin: float = 0,
        margin_warmup_steps: int = 0,
    ) -> None:
        if num_subcenters < 1:
            raise ConfigError(f"subcenter-arc-softmax needs num_subcenters >= 1, got {num_subcenters}")
        # an attribute of the instance, needed while the parent sizes the kernel
        object.__setattr__(self, "num_subcenters", num_subcenters)
        super().__init__(
            in_feats,
            num_classes,
            cos_scale,
            margin,
            margin_warmup_epochs,
            intertop_k,
            intertop_margin,
            margin_warmup_steps,
        )
        self.register_buffer("subcenter_counts", torch.zeros(num_classes, num_subcenters))

    def _class_cosines(self, cosines: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        best = cosines.unflatten(1, (self.num_classes, self.num_subcenters)).max(dim=2)
        if self.training and y is not None:
            self._count_winners(best.indices, y.long())
        return best.values

    @torch.no_grad()
    def _count_winners(self, winners: torch.Tensor, y: torch.Tensor) -> None:
        won = torch.zeros_like(self.subcenter_counts)
        won[y, winners.gather(1, y[:, None])[:, 0]] = 1.0
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(won, op=dist.ReduceOp.MAX)
        counts = self.subcenter_counts + won
        self.subcenter_counts.copy_(counts - counts.min(dim=1, keepdim=True).values)

    def prototypes(self) -> torch.Tensor:
        """(in_feats, num_classes): the sub-centre with the largest count of each class, detached, not normalised."""
        kernel = self.kernel.detach().unflatten(1, (self.num_classes, self.num_subcenters))
        main = self.subcenter_counts.argmax(dim=1)
        return kernel[:, torch.arange(self.num_classes, device=kernel.device), main.to(kernel.device)]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_subcenters={self.num_subcenters}"


OutputLayer = SoftmaxOutput | CosLossOutput
"""Any of the output layers."""


def new_prototypes(in_feats: int, num: int) -> torch.Tensor:
    """(in_feats, num) columns of length one in random directions."""
    return F.normalize(torch.randn(in_feats, num), dim=0)


def make_output_layer(
    loss_type: LossType | str,
    in_feats: int,
    num_classes: int,
    cos_scale: float = 64,
    margin: float = 0.3,
    margin_warmup_epochs: float = 0,
    intertop_k: int = 5,
    intertop_margin: float = 0,
    num_subcenters: int = 2,
    margin_warmup_steps: int = 0,
) -> OutputLayer:
    """The output layer for ``loss_type``, one of :data:`LOSS_TYPES`; see the classes for the arguments.

    Raises:
        ConfigError: unknown ``loss_type`` or no classes.
    """
    if num_classes < 1:
        raise ConfigError(f"num_classes must be at least 1, got {num_classes}")
    if loss_type == "softmax":
        return SoftmaxOutput(in_feats, num_classes)
    margins: dict[str, Any] = {
        "cos_scale": cos_scale,
        "margin": margin,
        "margin_warmup_epochs": margin_warmup_epochs,
        "intertop_k": intertop_k,
        "intertop_margin": intertop_margin,
        "margin_warmup_steps": margin_warmup_steps,
    }
    if loss_type == "cos-softmax":
        return CosLossOutput(in_feats, num_classes, **margins)
    if loss_type == "arc-softmax":
        return ArcLossOutput(in_feats, num_classes, **margins)
    if loss_type == "subcenter-arc-softmax":
        return SubCenterArcLossOutput(in_feats, num_classes, num_subcenters, **margins)
    raise ConfigError(unknown_choice("loss_type", loss_type, LOSS_TYPES))


def _sine(cosines: torch.Tensor) -> torch.Tensor:
    # sqrt(1 + 1e-10 - cos^2); the product keeps the digits near +-1, where 1 + 1e-10 - cos^2 in float32 has none
    return ((1.0 - cosines) * (1.0 + cosines) + 1e-10).sqrt()


@torch.no_grad()
def _affinity(prototypes: torch.Tensor) -> torch.Tensor:
    with autocast_disabled(prototypes):
        normalised = l2_normalise(prototypes.float(), 0)
        return (normalised.T @ normalised).clamp(-1.0, 1.0)
