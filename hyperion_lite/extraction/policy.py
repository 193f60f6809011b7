"""How embeddings were made. Embeddings of different policies are not comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from hyperion_lite._version import __version__
from hyperion_lite.core.errors import ConfigError


@dataclass(frozen=True)
class EmbeddingPolicy:
    """What has to agree between two embeddings that are compared.

    Attributes:
        model_class: class name of the model.
        weights: SHA-256 of the tensors, first 16 hex digits.
        model: the path that was given; for people, it may differ.
        frontend_rules: release rules of the features.
        sample_freq: sampling rate of the model.
        chunk_length: seconds that the encoder saw at a time, 0 for all.
        embed_layer: head layer, from 0; ``None`` for a head that has no choice.
        vad: whether only voiced parts were used.
        config: SHA-256 of the model's configuration, first 16 hex digits: not everything that counts has a tensor.
        channels: what was done with files of several channels.
        version: of this package; may differ.
    """

    model_class: str
    weights: str
    model: str
    frontend_rules: str
    sample_freq: float
    chunk_length: float = 0.0
    embed_layer: int | None = None
    vad: bool = False
    config: str = ""
    channels: str = "error"
    version: str = __version__

    _INFORMATION = ("model", "version")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> EmbeddingPolicy:
        """From the plain values of a file; keys of newer releases are ignored.

        Raises:
            ConfigError: a key is missing.
        """
        if not isinstance(document, Mapping):
            raise ConfigError(f"the record of how embeddings were made is a {type(document).__name__}, not a mapping")
        names = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in document.items() if key in names})
        except TypeError as error:
            raise ConfigError(f"the record of how embeddings were made is incomplete: {error}") from error

    def differences(self, other: EmbeddingPolicy) -> list[str]:
        """Fields that make embeddings of the two incomparable, as ``name: ours / theirs``."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{k}: {mine[k]} / {theirs[k]}" for k in mine if k not in self._INFORMATION and mine[k] != theirs[k]]


def policy_of_model(
    model: Any,
    path: str,
    chunk_length: float = 0.0,
    embed_layer: int | None = None,
    vad: bool = False,
    channels: str | int = "error",
) -> EmbeddingPolicy:
    """The policy of embeddings that ``model`` (a :class:`~hyperion_lite.models.wav2xvectors.waveform_xvector.WaveformXVector`) makes.

    Raises:
        ValueError: options that the model cannot have, see its ``check_extraction``.
    """
    embed_layer = model.check_extraction(chunk_length, embed_layer)
    config = model.get_config()
    rules = next((config[key].get("frontend_rules") for key in ("feats", "feat_fuser") if key in config), None)
    return EmbeddingPolicy(
        type(model).__name__,
        weights_digest(model.state_dict()),
        path,
        str(rules or "none"),
        float(model.sample_frequency),
        float(chunk_length),
        embed_layer,
        vad,
        hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16],
        str(channels),
    )


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """First 16 hex digits of the SHA-256 over names, dtypes, shapes and bytes of ``state``."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()[:16]
