"""From the hidden states of all layers of an encoder to one sequence of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from hyperion_lite.core.config import Configurable, unknown_choice
from hyperion_lite.core.errors import ConfigError

FuserType = Literal["last", "weighted-avg", "linear", "cat", "stack"]


class FeatFuser(Configurable, nn.Module):
    """Base of the fusers: hidden states of ``num_feats`` layers, (batch, time, feat_dim) each, to (batch, time, out_feats).

    Subclasses implement :meth:`fuse` and set ``fuser_type``. Nothing here knows of padding: a frame is made of the same frame of the
    layers. Tensors: ``feat_fuser`` (see the subclasses), and ``feat_proj`` with a projection.

    Args:
        num_feats: number of layers.
        feat_dim: features per frame of a layer.
        proj_dim: project the result to this dimension; null for no projection.
        proj_bias: whether the projection has a bias.

    Raises:
        ConfigError: a size that is not positive.
    """

    fuser_type: ClassVar[str]

    def __init__(self, num_feats: int, feat_dim: int, proj_dim: int | None = None, proj_bias: bool = True) -> None:
        super().__init__()
        if min(num_feats, feat_dim, 1 if proj_dim is None else proj_dim) < 1:
            raise ConfigError(
                f"feat_fuser needs positive num_feats, feat_dim and proj_dim, got {num_feats}, {feat_dim} and {proj_dim}"
            )
        self.num_feats = num_feats
        self.feat_dim = feat_dim
        self.proj_dim = proj_dim
        self.feat_proj = self._make_projection(proj_bias)

    def _make_projection(self, bias: bool) -> nn.Linear | None:
        return None if self.proj_dim is None else nn.Linear(self.feat_dim, self.proj_dim, bias=bias)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments and ``fuser_type``: what :class:`FeatFuserFactory` takes."""
        return {"fuser_type": self.fuser_type, **super().get_config()}

    @property
    def out_feats(self) -> int:
        """Features per frame of the result."""
        return self.proj_dim or self.feat_dim

    def forward(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse.

        Args:
            hidden_states: ``num_feats`` tensors (batch, time, feat_dim), floating point, the last layer last.

        Returns:
            (batch, time, out_feats).

        Raises:
            ValueError: another number of layers, or of features.
        """
        shapes = {tuple(h.shape) for h in hidden_states}
        if not self._takes(len(hidden_states)) or len(shapes) != 1 or hidden_states[0].size(-1) != self.feat_dim:
            raise ValueError(
                f"the fuser takes {self.num_feats} layers of (batch, time, {self.feat_dim}), "
                f"got {len(hidden_states)} of {', '.join(map(str, sorted(shapes))) or 'none'}"
            )
        fused = self.fuse(hidden_states)
        return fused if self.feat_proj is None else self.feat_proj(fused)

    def _takes(self, count: int) -> bool:
        return count == self.num_feats

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The frames before the projection."""
        raise NotImplementedError


class LastFeatFuser(FeatFuser):
    """The last layer; the others need not be given. It has no tensors unless there is a projection."""

    fuser_type = "last"

    def _takes(self, count: int) -> bool:
        return 1 <= count <= self.num_feats

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        return hidden_states[-1]


class WeightedAvgFeatFuser(FeatFuser):
    """sum_i softmax(w)_i h_i, with w the tensor ``feat_fuser`` (num_feats,); equal weights at first."""

    fuser_type = "weighted-avg"

    def __init__(self, num_feats: int, feat_dim: int, proj_dim: int | None = None, proj_bias: bool = True) -> None:
        super().__init__(num_feats, feat_dim, proj_dim, proj_bias)
        self.feat_fuser = nn.Parameter(torch.zeros(num_feats))

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        return _weighted_sum(hidden_states, self.feat_fuser.softmax(0))


class LinearFeatFuser(FeatFuser):
    """sum_i w_i h_i, with w the tensor ``feat_fuser.weight`` (1, num_feats); the mean at first."""

    fuser_type = "linear"

    def __init__(self, num_feats: int, feat_dim: int, proj_dim: int | None = None, proj_bias: bool = True) -> None:
        super().__init__(num_feats, feat_dim, proj_dim, proj_bias)
        self.feat_fuser = nn.Linear(num_feats, 1, bias=False)
        nn.init.constant_(self.feat_fuser.weight, 1 / num_feats)

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        return _weighted_sum(hidden_states, self.feat_fuser.weight[0])


class CatFeatFuser(FeatFuser):
    """W [h_0; ...; h_n] + b, to ``proj_dim`` features, or to feat_dim without it; tensors ``feat_fuser.weight`` and ``.bias``."""

    fuser_type = "cat"

    def __init__(self, num_feats: int, feat_dim: int, proj_dim: int | None = None, proj_bias: bool = True) -> None:
        super().__init__(num_feats, feat_dim, proj_dim, proj_bias)
        self.feat_fuser = nn.Linear(num_feats * feat_dim, self.out_feats, bias=proj_bias)

    def _make_projection(self, bias: bool) -> nn.Linear | None:
        # the fusion is the projection
        return None

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.feat_fuser(torch.cat(tuple(hidden_states), dim=-1))


class StackFeatFuser(FeatFuser):
    """All layers beside each other, index ``layer * feat_dim + feature``, for heads that weight the layers themselves.

    It has no tensors. The original toolkit does not know it.
    """

    fuser_type = "stack"

    def _make_projection(self, bias: bool) -> nn.Linear | None:
        if self.proj_dim is not None:
            raise ConfigError(
                "feat_fuser of type 'stack' has no projection: leave out proj_dim, or take the type 'cat'"
            )
        return None

    @property
    def out_feats(self) -> int:
        return self.num_feats * self.feat_dim

    def fuse(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(hidden_states), dim=-1)


_CLASSES: Mapping[str, type[FeatFuser]] = {
    cls.fuser_type: cls for cls in (LastFeatFuser, WeightedAvgFeatFuser, LinearFeatFuser, CatFeatFuser, StackFeatFuser)
}


class FeatFuserFactory(Configurable):
    """Makes the fuser that a configuration names."""

    config_method = "create"

    @staticmethod
    def create(
        fuser_type: FuserType = "weighted-avg",
        num_feats: int | None = None,
        feat_dim: int | None = None,
        proj_dim: int | None = None,
        proj_bias: bool = True,
    ) -> FeatFuser:
        """Make a fuser.

        Args:
            fuser_type: last, weighted-avg, linear, cat, or stack (all layers beside each other).
            num_feats: number of layers; models fill it in.
            feat_dim: features per frame of a layer; models fill it in.
            proj_dim: dimension of a projection behind the fusion, of the result for cat; null for none.
            proj_bias: whether the projection has a bias.

        Raises:
            ConfigError: unknown type, or a size that is missing or wrong.
        """
        if fuser_type not in _CLASSES:
            raise ConfigError(unknown_choice("fuser_type", fuser_type, _CLASSES))
        if num_feats is None or feat_dim is None:
            raise ConfigError("feat_fuser needs num_feats and feat_dim, the number and the size of the hidden states")
        return _CLASSES[fuser_type](num_feats, feat_dim, proj_dim, proj_bias)


def _weighted_sum(hidden_states: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    # one after the other: a stack of all layers would be one more copy of them
    total = hidden_states[0] * weights[0]
    for state, weight in zip(hidden_states[1:], weights[1:], strict=True):
        total = total + state * weight
    return total
