"""Whether the weights of a model file hold its low-rank adapters already; the file does not say."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.serialization.artifact import ModelArtifact
from hyperion_lite.serialization.lora_names import adapted_weights, unfold_adapters

logger = logging.getLogger(__name__)


def resolve_adapters(artifact: ModelArtifact, merged: bool | None = None) -> ModelArtifact:
    """``artifact`` with weights that do not hold the adapters.

    The original toolkit folds adapters into the weights in evaluation mode, and a file that was saved so holds them twice. Its trainer
    saves in training mode. Files of this package never hold them twice.

    Args:
        artifact: what was read.
        merged: whether the weights hold the adapters. ``None``: they do not; with a warning where they could.

    Raises:
        ConfigError: ``merged``, but the file has no adapters.
        ModelFileError: weights and adapters do not fit each other.
    """
    pairs = adapted_weights(artifact.state)
    if not pairs:
        if merged:
            raise ConfigError(f"lora_merged was given, but {artifact.source} has no adapters (lora_A, lora_B)")
        return artifact
    spelled_by_peft = any(not down.endswith(".lora_A") for down, _ in pairs.values())
    if merged is None and not (artifact.own or artifact.trainer_state or spelled_by_peft):
        logger.warning(
            "%s has low-rank adapters and does not say whether its weights hold them already; they are taken not to. A model that was "
            "saved in evaluation mode by the original toolkit needs lora_merged=True",
            artifact.source,
        )
    if not merged:
        return artifact
    state = OrderedDict(artifact.state)
    unfold_adapters(state, _alpha(artifact), artifact.source)
    return replace(artifact, state=state)


def _alpha(artifact: ModelArtifact) -> float:
    part = artifact.config.get("hf_feats")
    alpha = part.get("lora_alpha", 1) if isinstance(part, Mapping) else 1
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        raise ConfigError(f"{artifact.source}: hf_feats.lora_alpha must be a number, got {alpha!r}")
    return float(alpha)
