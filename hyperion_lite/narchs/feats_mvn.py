"""What front ends do with their frames: augmentation and normalisation in either order, zeros in the padding, the asked axis order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.config import check_config
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.audio_feats_filter_banks import FrontEndRules
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm, canonical_mvn_config
from hyperion_lite.layers.spec_augment import SpecAugment


class FeatsMVN(nn.Module):
    """Mixin of architectures that give frames (batch, time, features): SpecAugment and mean and variance normalisation.

    Neither has tensors.
    """

    mvn: MeanVarianceNorm | None
    spec_augment: SpecAugment | None
    trans: bool
    aug_after_mvn: bool
    frontend_rules: FrontEndRules

    def _make_processing(
        self,
        mvn: Mapping[str, Any] | None,
        spec_augment: Mapping[str, Any] | None,
        trans: bool,
        aug_after_mvn: bool,
        frontend_rules: FrontEndRules,
    ) -> None:
        """Build the parts from the constructor arguments of that name."""
        self.mvn = _make_mvn(mvn, frontend_rules)
        self.spec_augment = None
        if spec_augment is not None:
            self.spec_augment = SpecAugment(**check_config(SpecAugment, spec_augment, where="spec_augment"))
        self.trans = trans
        self.aug_after_mvn = aug_after_mvn
        self.frontend_rules = frontend_rules

    def _process(self, feats: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """(batch, time, features), zero in the padding, to the same."""
        if self.spec_augment is not None and not self.aug_after_mvn:
            feats = self.spec_augment.compute(feats, padding)
        if self.mvn is not None:
            feats = self.mvn.compute(feats, padding)
        if self.spec_augment is not None and self.aug_after_mvn:
            feats = self.spec_augment.compute(feats, padding)
        return feats

    def _output(
        self, feats: torch.Tensor, padding: Padding | None, with_lengths: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Frames in the asked order of axes, and their lengths if there were any."""
        lengths = None
        if with_lengths:
            frames = torch.full((feats.size(0),), feats.size(1), dtype=torch.int64, device=feats.device)
            lengths = frames if padding is None else padding.lengths
        return feats.transpose(1, 2) if self.trans else feats, lengths


def _make_mvn(config: Mapping[str, Any] | None, frontend_rules: FrontEndRules) -> MeanVarianceNorm | None:
    if config is None:
        return None
    checked = check_config(MeanVarianceNorm, canonical_mvn_config(config), where="mvn")
    if not (checked.get("norm_mean", False) or checked.get("norm_var", False)):
        return None
    return MeanVarianceNorm(**checked, frontend_rules=frontend_rules)
