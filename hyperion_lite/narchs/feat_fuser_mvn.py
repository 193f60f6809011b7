"""The hidden states of a pretrained encoder as features: fusion of the layers, augmentation, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from hyperion_lite.core.config import check_config
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.audio_feats_filter_banks import FrontEndRules
from hyperion_lite.layers.feat_fuser import FeatFuser, FeatFuserFactory
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm, canonical_mvn_config
from hyperion_lite.layers.spec_augment import SpecAugment
from hyperion_lite.narchs.feats_mvn import FeatsMVN
from hyperion_lite.narchs.net_arch import NetArch, Shape


class FeatFuserMVN(NetArch, FeatsMVN):
    """Hidden states of several layers to one sequence of normalised features.

    Fusion, then SpecAugment, then mean and variance normalisation (``aug_after_mvn`` swaps the last two). Tensors: those of the fuser,
    under ``feat_fuser.``.

    Args:
        feat_fuser: configuration of the fusion, see :class:`~hyperion_lite.layers.feat_fuser.FeatFuserFactory`.
        mvn: configuration of the normalisation, see ``MeanVarianceNorm``. There is one only if the configuration itself contains a true
            ``norm_mean`` or ``norm_var``.
        spec_augment: configuration of the augmentation, see ``SpecAugment``.
        trans: return (batch, features, frames) instead of (batch, frames, features).
        aug_after_mvn: augment after the normalisation.
        frontend_rules: window of the sliding normalisation as in the original toolkit's 2024 ("legacy") or 2026 ("modern") release.

    Raises:
        ConfigError: unknown or ill-typed keys, sizes that are missing.

    Example:
        >>> fuser = FeatFuserMVN({"fuser_type": "weighted-avg", "num_feats": 2, "feat_dim": 4}, trans=True)
        >>> feats, lengths = fuser([torch.zeros(1, 5, 4), torch.ones(1, 5, 4)])
        >>> feats.shape, float(feats.mean())
        (torch.Size([1, 4, 5]), 0.5)
    """

    nested_configs: ClassVar = {"feat_fuser": FeatFuserFactory, "mvn": MeanVarianceNorm, "spec_augment": SpecAugment}
    own_config_keys: ClassVar = ("frontend_rules",)

    def __init__(
        self,
        feat_fuser: dict[str, Any] | FeatFuser,
        mvn: dict[str, Any] | None = None,
        spec_augment: dict[str, Any] | None = None,
        trans: bool = False,
        aug_after_mvn: bool = False,
        frontend_rules: FrontEndRules = "modern",
    ) -> None:
        super().__init__()
        if not isinstance(feat_fuser, FeatFuser):
            feat_fuser = FeatFuserFactory.create(**check_config(FeatFuserFactory, feat_fuser, where="feat_fuser"))
        self.feat_fuser = feat_fuser
        self._make_processing(mvn, spec_augment, trans, aug_after_mvn, frontend_rules)
        self._update_config(feat_fuser=feat_fuser)
        if mvn is not None:
            self._update_config(mvn=canonical_mvn_config(mvn))

    @property
    def num_feats(self) -> int:
        """Features per frame of the result."""
        return self.feat_fuser.out_feats

    def in_shape(self) -> Shape:
        """(batch, frames, features) of each layer."""
        return None, None, self.feat_fuser.feat_dim

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        """(batch, features, frames) if ``trans``, else (batch, frames, features)."""
        batch, frames = (None, None) if in_shape is None else in_shape[:2]
        return (batch, self.num_feats, frames) if self.trans else (batch, frames, self.num_feats)

    def in_context(self) -> tuple[int, int]:
        """The contexts of the sliding normalisation."""
        return (0, 0) if self.mvn is None else (self.mvn.left_context, self.mvn.right_context)

    def forward(
        self, hidden_states: Sequence[torch.Tensor], x_lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Fuse and normalise.

        In ``train()`` SpecAugment is random (torch's generators), within each item; ``eval()`` is deterministic. No state changes.

        Args:
            hidden_states: tensors (batch, frames, feat_dim) floating point, one for each layer that is fused, the last layer last.
            x_lengths: (batch,) integer valid frames before right padding, or a (batch, frames) bool mask, True = valid. None: all. What
                padded frames hold has no influence.

        Returns:
            Frames: (batch, frames, features), or (batch, features, frames) if ``trans``; 0 at padded frames. Lengths: (batch,) int64 valid
            frames, None if ``x_lengths`` is.

        Raises:
            LengthsError: lengths do not fit.
            ValueError: another number or size of layers than configured.
        """
        if not hidden_states:
            raise ValueError("feat_fuser was given no hidden states")
        like = hidden_states[-1]
        padding = Padding.from_lengths(x_lengths, like.size(0), like.size(1), device=like.device)
        if padding is not None:
            # before the fusion: its weights would get a NaN of the padding as gradient
            hidden_states = [padding.fill(h, dim=1) for h in hidden_states]
        feats = self.feat_fuser(hidden_states)
        if padding is not None:
            feats = padding.fill(feats, dim=1)
        return self._output(self._process(feats, padding), padding, x_lengths is not None)
