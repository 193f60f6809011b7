"""Low-rank adapters in the linear layers of an encoder, by peft.

Reference: Hu et al., "LoRA: low-rank adaptation of large language models", 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.extras import require
from hyperion_lite.tpm.hf.transformers_import import import_transformers

AdapterBias = Literal["none", "all", "lora_only"]
"""Which biases learn with the adapters, in the words of peft: none, all of the encoder, those of the adapted layers."""

ADAPTER = "default"
"""The name of the adapter in peft, and in the names of its tensors."""


@dataclass(frozen=True)
class LoRASettings:
    """What adapters look like.

    Attributes:
        components: names of linear layers, or the ends of their dotted names.
        rank: rows of ``lora_A``, columns of ``lora_B``.
        alpha: the adapters' output ``B A x`` is scaled by ``alpha / rank``.
        dropout: at their input, in training.

    Raises:
        ConfigError: numbers out of range, or no components.
    """

    components: tuple[str, ...]
    rank: int
    alpha: float
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"lora_rank must be at least 1, got {self.rank}")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"lora_dropout must be in [0, 1), got {self.dropout}")
        if not self.components:
            raise ConfigError("lora_components is empty: name the linear layers that get an adapter")

    def is_like(self, other: LoRASettings) -> bool:
        """Whether the tensors of the one mean the same in the other."""
        mine, theirs = ((set(s.components), s.rank, s.alpha) for s in (self, other))
        return mine == theirs

    def describe(self) -> str:
        """For messages."""
        return f"of rank {self.rank}, alpha {self.alpha:g}, in {', '.join(self.components)}"


def add_adapters(model: nn.Module, settings: LoRASettings) -> nn.Module:
    """Put adapters into ``model``, whose output they do not change until they are trained.

    Returns:
        ``model`` wrapped by peft; its tensors are named as peft does.

    Raises:
        ConfigError: a component is not there, or is no linear layer.
        MissingDependencyError: peft is absent.
    """
    _check_components(model, settings.components)
    # peft imports transformers, which a broken torchaudio would stop
    import_transformers("utils")
    peft: Any = require("peft", extra="lora", purpose="low-rank adapters")
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.components),
        bias="none",
    )
    training = model.training
    learning = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with warnings.catch_warnings():
        # peft reads an attribute that newer releases of transformers have renamed
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        wrapped: nn.Module = peft.get_peft_model(model, config, adapter_name=ADAPTER)
    for parameter, learns in learning:
        # peft freezes everything else, here train modes decide on that
        parameter.requires_grad_(learns)
    return wrapped.train(training)


def merge_adapters(model: nn.Module) -> nn.Module:
    """The module in ``model`` without adapters, their products added to its weights."""
    wrapped: Any = model
    return wrapped.merge_and_unload()


def remove_adapters(model: nn.Module) -> nn.Module:
    """The module in ``model`` without adapters, as it was before they came."""
    wrapped: Any = model
    return wrapped.unload()


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each layer with an adapter."""
    return ((name, module) for name, module in model.named_modules() if _is_adapted(module))


def adapter_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all adapters."""
    found: list[nn.Parameter] = []
    for _, layer in adapted_layers(model):
        parts: Any = layer
        found += [p for part in (parts.lora_A, parts.lora_B) for p in part.parameters()]
    return found


def bias_parameters(model: nn.Module, which: AdapterBias) -> list[nn.Parameter]:
    """The biases that learn with the adapters."""
    if which == "none":
        return []
    if which == "lora_only":
        layers: list[Any] = [layer for _, layer in adapted_layers(model)]
        return [layer.base_layer.bias for layer in layers if layer.base_layer.bias is not None]
    return [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "bias"]


def _is_adapted(module: nn.Module) -> bool:
    return isinstance(getattr(module, "lora_A", None), nn.ModuleDict)


def _check_components(model: nn.Module, components: Sequence[str]) -> None:
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    known = sorted({name.rpartition(".")[2] for name in linear})
    for component in components:
        found = [name for name in modules if name and (name == component or name.endswith(f".{component}"))]
        if not found:
            raise ConfigError(
                f"lora_components: the encoder has no layer {component!r}{nearest(component, known)} "
                f"(its linear layers: {', '.join(known)})"
            )
        other = next((name for name in found if name not in linear), None)
        if other is not None:
            raise ConfigError(
                f"lora_components: {other} is a {type(modules[other]).__name__}, adapters go into linear layers "
                f"({', '.join(known)})"
            )
