"""How models with a Hugging Face encoder learn: their train modes, and the adapters of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import LayerStack
from hyperion_lite.models.learning_parts import TrainModes
from hyperion_lite.models.wav2xvectors.hf_train_modes import (
    MODES,
    HFTrainMode,
    frozen_encoder_modules,
    frozen_encoder_parameters,
)
from hyperion_lite.models.wav2xvectors.waveform_xvector import WaveformXVector
from hyperion_lite.narchs.feat_fuser_mvn import FeatFuserMVN
from hyperion_lite.tpm.hf.base import HFWav2VecBase

_M = TypeVar("_M", bound="HFLearning")


class HFLearning(WaveformXVector, abstract=True):
    """Base of the models with a Hugging Face encoder ``hf_feats`` and a fusion of its layers ``feat_fuser``, which subclasses build."""

    valid_train_modes: ClassVar[Sequence[str]] = tuple(MODES)

    hf_feats: HFWav2VecBase
    feat_fuser: FeatFuserMVN

    @property
    def _takes_last(self) -> bool:
        """Whether the frames are the encoder's own output, at the frame rate of its adapter if it has one."""
        return self.feat_fuser.feat_fuser.fuser_type == "last"

    # train modes

    @property
    def _mode(self) -> HFTrainMode:
        return MODES[self.train_mode]

    def layer_stack(self) -> LayerStack:
        """The encoder and its transformer layers."""
        encoder = self.hf_feats
        return LayerStack(encoder, tuple(encoder.encoder_layers()), top=tuple(encoder.output_modules()))

    def frozen_modules(self, mode: str) -> list[nn.Module]:
        """The parts that ``mode`` freezes."""
        if mode == "frozen":
            return [self]
        chosen = MODES[mode]
        frozen = frozen_encoder_modules(self.hf_feats, chosen)
        frozen += [] if chosen.fuser else [self.feat_fuser]
        return [*frozen, *self.xvector.frozen_modules(chosen.xvector)]

    def set_train_mode(self, mode: str) -> None:
        """See the class; also :meth:`HyperTorchModel.set_train_mode`.

        Raises:
            ConfigError: the mode trains adapters, and the encoder has none.
            ValueError: no such mode.
        """
        chosen = MODES.get(mode)
        if chosen is not None and chosen.needs_adapters and self.hf_feats.lora_settings is None:
            raise ConfigError(
                f"train mode {mode!r} trains the adapters of the encoder, and it has none: set use_lora in hf_feats, or load_adapters"
            )
        super().set_train_mode(mode)
        self.xvector.set_train_mode(MODES[mode].xvector)
        for parameter in frozen_encoder_parameters(self.hf_feats, MODES[mode]):
            parameter.requires_grad_(False)

    def _parts_without_influence(self) -> list[nn.Module]:
        unused = [] if self._takes_last else self.hf_feats.last_state_modules()
        return [*super()._parts_without_influence(), *unused]

    def _graph(self, is_frozen: bool) -> AbstractContextManager[None]:
        """Around the computation of a part that ``is_frozen``: whether the train mode keeps its graph."""
        cut = is_frozen and self.training and self._mode.cuts_graph
        return torch.set_grad_enabled(torch.is_grad_enabled() and not cut)

    def _renew_train_mode(self) -> None:
        """Set the train mode again, for an encoder that has got, or lost, adapters."""
        has_adapters = self.hf_feats.lora_settings is not None
        modes = TrainModes(name for name, mode in MODES.items() if has_adapters or not mode.needs_adapters)
        # those of this model, which can do less than its class
        self.valid_train_modes = modes  # type: ignore[misc]
        if self.train_mode in modes:
            self._restore_learning_parts()
        else:
            self.set_train_mode("full")

    # adapters

    def merge_lora(self: _M) -> _M:
        """Add the adapters to the weights of the encoder and drop them: the same embeddings from a plain model, somewhat faster.

        A train mode of adapters becomes ``full``. Returns the model; one without adapters stays as it is.
        """
        self.hf_feats.merge_lora()
        self._renew_train_mode()
        return self

    def save(self, path: str | Path, merge_lora: bool = False) -> None:
        """Save the model, see :meth:`HyperTorchModel.save`.

        Args:
            path: file or directory.
            merge_lora: save a plain model, which needs no peft, with the adapters added to the weights; this model keeps them.

        Raises:
            FileExistsError: a directory with other content is in the way.
            OSError: nothing was written.
        """
        if merge_lora and self.hf_feats.lora_settings is not None:
            self.copy().merge_lora().save(path)
        else:
            super().save(path)

    def save_adapters(self, path: str | Path) -> None:
        """Save the adapters alone, with the biases that the train mode trains beside them; not the fusion, not the x-vector.

        See :meth:`AdaptedEncoder.save_adapters <hyperion_lite.tpm.hf.adapted_encoder.AdaptedEncoder.save_adapters>`.
        """
        self.hf_feats.save_adapters(path, self._mode.bias)

    def load_adapters(self, path: str | Path) -> None:
        """Take the adapters in a directory of :meth:`save_adapters`, or of peft.

        See :meth:`AdaptedEncoder.load_adapters <hyperion_lite.tpm.hf.adapted_encoder.AdaptedEncoder.load_adapters>`.
        """
        self.hf_feats.load_adapters(path)
        self._renew_train_mode()
