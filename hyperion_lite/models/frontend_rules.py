"""Which release of the original toolkit computed the features of a model file.

The releases of 2024 (``legacy``) and 2026 (``modern``) differ in the log floor, in the mel filter bank and in the sliding window of
the mean normalisation. The file does not record the release, but the filter bank it stores tells, where the formulas differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.audio_feats_factory import AudioFeatsFactory
from hyperion_lite.serialization.artifact import ModelArtifact

FrontendRules = Literal["auto", "legacy", "modern"]
RULES_KEY = "frontend_rules"
_TOLERANCE = 5e-5
"""Largest difference between a stored table and the formula in single precision; the two formulas differ by 1e-2. A table that was
stored in half precision may differ by its rounding."""
_FILTER_BANK = "feats.audio_feats._fb"


def resolve_frontend_rules(artifact: ModelArtifact, rules: FrontendRules = "auto") -> dict[str, Any]:
    """The configuration of ``artifact`` with resolved release rules in every part that has them.

    Args:
        artifact: what was read.
        rules: ``auto`` keeps what is stored, else compares the stored filter bank with both formulas, else takes ``legacy`` for a
            single file and ``modern`` for a directory.

    Raises:
        ValueError: unknown rules.
    """
    if rules not in ("auto", "legacy", "modern"):
        raise ValueError(f"frontend_rules must be 'auto', 'legacy' or 'modern', got {rules!r}")
    config = dict(artifact.config)
    for key in ("feats", "feat_fuser"):
        part = config.get(key)
        if not isinstance(part, Mapping):
            continue
        part = dict(part)
        if rules != "auto":
            part[RULES_KEY] = rules
        elif part.get(RULES_KEY) in (None, "auto"):
            default = "legacy" if artifact.container == "file" else "modern"
            part[RULES_KEY] = (
                _rules_of_filter_bank(part.get("audio_feats"), artifact.state.get(_FILTER_BANK)) or default
            )
        config[key] = part
    return config


def _rules_of_filter_bank(audio_feats: Any, stored: torch.Tensor | None) -> str | None:
    if stored is None or not isinstance(audio_feats, Mapping) or audio_feats.get("fb_type", "mel_kaldi") != "mel_kaldi":
        return None
    try:
        options = check_config(AudioFeatsFactory, AudioFeatsFactory.filter_args(**audio_feats))
    except ConfigError:
        # the check of the whole configuration, which follows, says what is wrong and where
        return None
    agreeing = [rules for rules in ("legacy", "modern") if _is_bank_of(stored, {**options, RULES_KEY: rules})]
    # a feature type that fixes another kind of filter bank has the same one under both
    return agreeing[0] if len(agreeing) == 1 else None


def _is_bank_of(stored: torch.Tensor, options: dict[str, Any]) -> bool:
    computed = AudioFeatsFactory.create(**options).get_buffer("_fb")
    return computed.shape == stored.shape and torch.allclose(
        computed.double(), stored.double(), rtol=0, atol=max(_TOLERANCE, torch.finfo(stored.dtype).eps)
    )
