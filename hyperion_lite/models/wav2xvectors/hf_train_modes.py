"""Train modes of models with a Hugging Face encoder: which parts learn, and which stay in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hyperion_lite.tpm.hf.base import HFWav2VecBase
from hyperion_lite.tpm.hf.lora import AdapterBias

EncoderPart = Literal["all", "none", "no-front", "adapters"]


@dataclass(frozen=True)
class HFTrainMode:
    """What learns in a train mode.

    Attributes:
        encoder: all of the Hugging Face encoder, nothing, all but its feature extractor, or its adapters alone.
        fuser: whether the fusion of the layers learns.
        xvector: train mode of the x-vector.
        bias: which biases learn beside the adapters.
        cuts_graph: in training no graph is kept of the frozen parts in front of those that learn, whatever the waveform requires.
    """

    encoder: EncoderPart = "all"
    fuser: bool = True
    xvector: str = "full"
    bias: AdapterBias = "none"
    cuts_graph: bool = False

    @property
    def needs_adapters(self) -> bool:
        """Whether only an encoder with adapters can be in this mode."""
        return self.encoder == "adapters"


MODES: Mapping[str, HFTrainMode] = {
    "full": HFTrainMode(),
    "frozen": HFTrainMode("none", False, "frozen"),
    "ft-embed-affine": HFTrainMode("none", False, "ft-embed-affine"),
    "ft-xvector": HFTrainMode("none", False),
    "hf-feats-frozen": HFTrainMode("none"),
    "ft-xvector-nograd": HFTrainMode("none", False, cuts_graph=True),
    "hf-feats-frozen-nograd": HFTrainMode("none", cuts_graph=True),
    "hf-feat-extractor-frozen": HFTrainMode("no-front"),
    "hf-lora": HFTrainMode("adapters"),
    "hf-all-bias-lora": HFTrainMode("adapters", bias="all"),
    "hf-lora-with-bias": HFTrainMode("adapters", bias="lora_only"),
}


def frozen_encoder_modules(encoder: HFWav2VecBase, mode: HFTrainMode) -> list[nn.Module]:
    """The parts of ``encoder`` in which nothing learns, and which stay in evaluation mode."""
    if mode.encoder == "none":
        return [encoder]
    if mode.encoder == "all":
        return []
    front = encoder.feature_extractor_modules()
    if mode.encoder == "no-front":
        return front
    # its weights do not learn, so its statistics must not move
    norms: list[nn.Module] = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
    return norms if mode.bias == "all" else [*front, *norms]


def frozen_encoder_parameters(encoder: HFWav2VecBase, mode: HFTrainMode) -> list[nn.Parameter]:
    """The parameters of ``encoder`` that do not learn beside those of its frozen modules."""
    if mode.encoder != "adapters":
        return []
    learning = {id(p) for p in encoder.lora_parameters(mode.bias)}
    return [p for p in encoder.parameters() if id(p) not in learning]
