"""The base class of neural architectures: what is between the layers and the task models."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.freezing import Freezable
from hyperion_lite.core.layer_stack import repeated_blocks
from hyperion_lite.core.registry import Registry

_A = TypeVar("_A", bound="NetArch")

Shape = tuple[int | None, ...]
"""Size of every axis; ``None`` where the size is free (batch, time)."""

_LENGTH_SEARCH_LIMIT = 1 << 16

BUILTIN_ARCHS = {
    "AudioFeatsMVN": "hyperion_lite.narchs.audio_feats_mvn",
    "ClassifHead": "hyperion_lite.narchs.classif_head",
    "ConformerEncoderV1": "hyperion_lite.narchs.conformer_encoder_v1",
    "ConvNext1dEncoder": "hyperion_lite.narchs.convnext1d_encoder",
    "ConvNext2dEncoder": "hyperion_lite.narchs.convnext2d_encoder",
    "DINOHead": "hyperion_lite.narchs.dino_head",
    "ETDNNEncoder": "hyperion_lite.narchs.etdnn_encoder",
    "FeatFuserMVN": "hyperion_lite.narchs.feat_fuser_mvn",
    "IdentityEncoder": "hyperion_lite.narchs.identity_encoder",
    "ResNet": "hyperion_lite.narchs.resnet",
    "ResNet1dEncoder": "hyperion_lite.narchs.resnet1d_encoder",
    "TDNNEncoder": "hyperion_lite.narchs.tdnn_encoder",
}
"""Class name -> module, so that a name in a configuration is enough to find the package's own architectures."""


class NetArch(Configurable, Freezable):
    """An architecture: a configurable module with known shapes, receptive field and length arithmetic.

    Subclasses are registered by class name; :meth:`class_by_name` finds them. A configuration carries the name under ``class_name``.

    What the ``forward`` of every architecture states in its docstring:

    * layout and dtype of the input. Sequences are (batch, features, time) unless said otherwise, floating point;
    * lengths. ``x_lengths`` is a (batch,) integer tensor of valid positions before right padding, or a (batch, time) bool mask with
      ``True`` = valid. ``None`` means that all positions are valid. An item's result never depends on the rest of its batch;
    * outputs, their shapes, and whether they are frames, logits or embeddings. What changes the temporal resolution also returns the new
      lengths (``None`` if none were given);
    * what differs between ``train()`` and ``eval()``;
    * state that the call changes. Unless said otherwise: the running statistics of batch normalisation, in ``train()`` only.

    Most methods here describe the time axis of the usual case, an architecture that maps a sequence to a sequence of the same rate;
    subclasses override what is different.
    """

    registry: ClassVar[Registry[type[NetArch]]] = Registry("architecture")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        NetArch.registry.register(cls)

    @staticmethod
    def class_by_name(name: str) -> type[NetArch]:
        """The architecture class called ``name``.

        Raises:
            KeyError: unknown; lists the known names.
        """
        if name not in NetArch.registry and name in BUILTIN_ARCHS:
            importlib.import_module(BUILTIN_ARCHS[name])
        return NetArch.registry.get(name)

    @staticmethod
    def create(config: dict[str, Any]) -> NetArch:
        """Build the architecture that ``config["class_name"]`` names from the other keys.

        Raises:
            KeyError: no such class.
            ConfigError: wrong keys, or no ``class_name``.
        """
        if "class_name" not in config:
            raise ConfigError(
                f"an architecture configuration needs 'class_name', it has: {', '.join(sorted(config)) or 'nothing'}"
            )
        return NetArch.class_by_name(config["class_name"]).from_config(config)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        return {"class_name": type(self).__name__, **super().get_config()}

    def in_shape(self) -> Shape:
        """Shape of the input, ``None`` for free sizes."""
        raise NotImplementedError(f"{type(self).__name__} does not state its input shape")

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        """Shape of the output for inputs of ``in_shape`` (default: :meth:`in_shape`), ``None`` for free sizes."""
        raise NotImplementedError(f"{type(self).__name__} does not state its output shape")

    def in_dim(self) -> int:
        """Number of axes of the input."""
        return len(self.in_shape())

    def out_dim(self) -> int:
        """Number of axes of the output."""
        return len(self.out_shape())

    def in_context(self) -> tuple[int, int]:
        """Input positions that output ``t`` sees to the left and to the right of ``t * total_stride``.

        Parts with global reach (squeeze-excitation, instance norm, attention, ...) are not counted.
        """
        return 0, 0

    @property
    def total_stride(self) -> int:
        """Input positions per output position."""
        return 1

    @property
    def is_convolutional(self) -> bool:
        """Whether, in ``eval()``, an output depends on nothing outside :meth:`in_context`; then chunked processing is exact."""
        return False

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Valid output positions for items of ``lengths`` (batch,) valid input positions. Exact integer arithmetic."""
        return lengths

    def encoder_layers(self) -> list[nn.Module]:
        """The layers that are frozen, unfrozen and given learning rates one by one, the one next to the input first.

        By default the blocks that the network repeats.
        """
        return repeated_blocks(self)

    def parts_without_influence(self) -> list[nn.Module]:
        """Parts whose tensors a model file has though no output depends on them; they are never trained."""
        return []

    def unfreeze(self: _A) -> _A:
        """As in the base class; :meth:`parts_without_influence` stay without gradients."""
        super().unfreeze()
        for module in self.modules():
            if isinstance(module, NetArch):
                for part in module.parts_without_influence():
                    part.requires_grad_(False)
        return self

    @property
    def min_length(self) -> int:
        """Smallest input length that gives at least one output position."""
        return smallest_length(self.out_lengths)


def smallest_length(out_lengths: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Smallest length for which ``out_lengths`` is positive.

    Raises:
        ValueError: there is none in the searched range.
    """
    limit = 64
    while limit <= _LENGTH_SEARCH_LIMIT:
        candidates = torch.arange(1, limit + 1)
        positive = torch.nonzero(out_lengths(candidates) > 0)
        if positive.numel():
            return int(candidates[positive[0, 0]])
        limit *= 4
    raise ValueError(f"no input of up to {_LENGTH_SEARCH_LIMIT} positions gives an output")
