"""Adapters of an encoder over its life: added, trained, saved alone, loaded, merged into the weights."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import nn

from hyperion_lite.core.allocation_budget import AllocationBudget
from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.core.freezing import Freezable
from hyperion_lite.tpm.hf.adapter_files import read_adapters, write_adapters
from hyperion_lite.tpm.hf.lora import (
    AdapterBias,
    LoRASettings,
    adapter_parameters,
    add_adapters,
    bias_parameters,
    merge_adapters,
    remove_adapters,
)

_E = TypeVar("_E", bound="AdaptedEncoder")


class AdaptedEncoder(Configurable, Freezable):
    """What encoders can do with low-rank adapters in ``hf_model``.

    The weights never hold the adapters while there are any, in ``eval()`` neither, so that what is saved does not depend on the mode.
    """

    hf_model: nn.Module

    default_lora_components: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    """The layers that get an adapter where the configuration names none."""

    def __init__(self) -> None:
        super().__init__()
        self._lora: LoRASettings | None = None

    @property
    def lora_settings(self) -> LoRASettings | None:
        """What the adapters look like; ``None`` without adapters."""
        return self._lora

    def add_lora(self, settings: LoRASettings) -> None:
        """Add adapters, which change nothing until they are trained.

        Raises:
            ConfigError: there are some already, or the encoder lacks a component.
            MissingDependencyError: peft is absent.
        """
        if self._lora is not None:
            raise ConfigError("the encoder has adapters already; merge them first (merge_lora)")
        # adapters that are added in inference mode can be trained all the same
        with torch.inference_mode(False):
            self.hf_model = add_adapters(self.hf_model, settings)
        self._lora = settings
        self._update_config(
            use_lora=True,
            lora_components=list(settings.components),
            lora_rank=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
        )

    def merge_lora(self: _E) -> _E:
        """Add the products of the adapters to the weights and drop the adapters: the same outputs from a plain encoder. Returns itself."""
        if self._lora is not None:
            with torch.inference_mode(False), torch.no_grad():
                self.hf_model = merge_adapters(self.hf_model)
            self._lora = None
            self._update_config(use_lora=False)
        return self

    def lora_parameters(self, bias: AdapterBias = "none") -> list[nn.Parameter]:
        """The parameters of the adapters, and the biases that learn with them."""
        return [*adapter_parameters(self.hf_model), *bias_parameters(self.hf_model, bias)]

    def save_adapters(self, path: str | Path, bias: AdapterBias = "none") -> None:
        """Save the adapters alone, in the layout of peft, so that also ``peft.PeftModel.from_pretrained`` takes them.

        Args:
            path: directory.
            bias: which biases to save with them.

        Raises:
            ConfigError: there are no adapters.
            FileExistsError: ``path`` holds something else.
        """
        if self._lora is None:
            raise ConfigError(f"this {type(self).__name__} has no adapters to save (use_lora is false)")
        wanted = {id(p) for p in self.lora_parameters(bias)}
        state = {name: p.detach() for name, p in self.hf_model.named_parameters() if id(p) in wanted}
        write_adapters(Path(path), self._lora, bias, state)

    def load_adapters(self, path: str | Path) -> None:
        """Take adapters of :meth:`save_adapters`, or of peft, onto this encoder.

        An encoder without adapters gets them; those that are there are replaced and must have the same rank and components. Biases in
        the file replace the encoder's.

        Raises:
            FileNotFoundError: a file is missing.
            ModelFileError: a file is damaged, or its tensors do not fit.
            ConfigError: the adapters are of an unsupported kind, or differ from those that are there.
            MissingDependencyError: peft is absent.
        """
        settings, state = read_adapters(Path(path))
        present = self._lora
        if present is None:
            # the rank is that of the tensors
            with AllocationBudget(state.values(), path):
                self.add_lora(settings)
        elif not present.is_like(settings):
            raise ConfigError(
                f"{path} has adapters {settings.describe()}; the encoder has some {present.describe()}. Merge those first (merge_lora)"
            )
        try:
            self._take(state, path)
        except ModelFileError:
            if present is None:
                self._drop_lora()
            raise

    def _take(self, state: dict[str, torch.Tensor], where: object) -> None:
        targets = dict(self.hf_model.named_parameters())
        adapters = {id(p) for p in adapter_parameters(self.hf_model)}
        missing = [name for name, p in targets.items() if id(p) in adapters and name not in state]
        unknown = [name for name in state if name not in targets]
        shapes = [name for name, value in state.items() if name in targets and targets[name].shape != value.shape]
        for what, names in (("lacks", missing), ("has unknown tensors", unknown), ("has other shapes for", shapes)):
            if names:
                more = f" and {len(names) - 10} more" if len(names) > 10 else ""
                raise ModelFileError(f"{where} {what}: {', '.join(names[:10])}{more}")
        with torch.inference_mode(False), torch.no_grad():
            for name, value in state.items():
                targets[name].data.copy_(value)

    def _drop_lora(self) -> None:
        self.hf_model = remove_adapters(self.hf_model)
        self._lora = None
        self._update_config(use_lora=False)
