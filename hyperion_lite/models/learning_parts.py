"""Which parts of a model learn, and its parameters in groups for an optimizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.freezing import Freezable
from hyperion_lite.core.layer_stack import LayerStack
from hyperion_lite.narchs.net_arch import NetArch

logger = logging.getLogger(__name__)

_M = TypeVar("_M", bound="LearningParts")


class ParameterSummary(NamedTuple):
    """Element counts of a model."""

    trainable: int
    non_trainable: int
    buffers: int
    total: int


class TrainModes(tuple[str, ...]):
    """Names of train modes. A tuple; calling it gives the list, as code written for the original toolkit does."""

    def __call__(self) -> list[str]:
        return list(self)


class LearningParts(Configurable, Freezable):
    """Train modes of a model, and its trainable parameters.

    Class attributes:
        valid_train_modes: names accepted by :meth:`set_train_mode`.
    """

    valid_train_modes: ClassVar[Sequence[str]] = TrainModes(("full", "frozen"))

    def __init__(self) -> None:
        super().__init__()
        self._train_mode = "full"
        self._last_layers: int | None = None

    # train modes

    @property
    def train_mode(self) -> str:
        """The train mode last set; ``full`` at first."""
        return self._train_mode

    @train_mode.setter
    def train_mode(self, mode: str) -> None:
        self.set_train_mode(mode)

    def frozen_modules(self, mode: str) -> list[nn.Module]:
        """The parts that ``mode`` freezes; subclasses with more modes override this."""
        return [self] if mode == "frozen" else []

    def set_train_mode(self, mode: str) -> None:
        """Choose which parts learn. This is not ``train()``/``eval()``: those switch dropout and batch statistics.

        Frozen parts get no gradient and keep evaluation behaviour under ``train()``, so that their buffers never move.

        Raises:
            ValueError: not one of :attr:`valid_train_modes`.
        """
        if mode not in self.valid_train_modes:
            raise ValueError(
                f"{type(self).__name__} has no train mode {mode!r}; it has: {', '.join(self.valid_train_modes)}"
            )
        self._train_mode = mode
        self._last_layers = None
        for module in self.modules():
            if isinstance(module, Freezable):
                module._is_frozen = False
        self.requires_grad_(True)
        for part in self._parts_without_influence():
            part.requires_grad_(False)
        for module in self.modules():
            # of Hugging Face encoders, for the same reason
            for parameter in getattr(module, "fixed_parameters", list)():
                parameter.requires_grad_(False)
        for frozen in self.frozen_modules(mode):
            frozen.requires_grad_(False)
            _stay_in_eval(frozen)
        self.train(self._asked_training)

    def layer_stack(self) -> LayerStack | None:
        """The encoder and its layers in order, for what goes by depth; ``None`` for a model that does not tell them."""
        return None

    def _layers(self) -> LayerStack:
        stack = self.layer_stack()
        if stack is None or not stack.layers:
            raise ConfigError(
                f"{type(self).__name__} does not tell the layers of its encoder, so nothing can go by their depth"
            )
        return stack

    def train_last_layers(self, count: int) -> None:
        """As train mode ``full``, but of the encoder only the last ``count`` layers learn; what is below is frozen.

        Args:
            count: 0 freezes the whole encoder. :meth:`set_train_mode` ends it.

        Raises:
            ValueError: the encoder has not so many layers, or the model does not tell its layers.
        """
        modules, parameters = self._layers().below(count)
        self.set_train_mode("full")
        self._last_layers = count
        for parameter in parameters:
            parameter.requires_grad_(False)
        for module in modules:
            _stay_in_eval(module)
        self.train(self._asked_training)

    def _restore_learning_parts(self) -> None:
        """Let the same parts learn as before, where some were replaced."""
        layers = self._last_layers
        self.set_train_mode(self.train_mode)
        if layers is not None:
            self.train_last_layers(layers)

    def _parts_without_influence(self) -> list[nn.Module]:
        # parameters that get no gradient make distributed training fail
        return [
            part
            for module in self.modules()
            if isinstance(module, NetArch)
            for part in module.parts_without_influence()
        ]

    def train(self: _M, mode: bool = True) -> _M:
        """Training behaviour for everything that the train mode does not freeze. Returns the model."""
        super().train(mode)
        if mode:
            for module in self.frozen_modules(self._train_mode):
                if module is not self:
                    module.eval()
            if self._last_layers is not None:
                for module in self._layers().below(self._last_layers)[0]:
                    module.eval()
        return self

    def freeze(self: _M) -> _M:
        """The same as ``set_train_mode("frozen")``. Returns the model."""
        self.set_train_mode("frozen")
        return self

    def unfreeze(self: _M) -> _M:
        """The same as ``set_train_mode("full")``. Returns the model."""
        self.set_train_mode("full")
        return self

    # parameters

    @property
    def device(self) -> torch.device:
        """Device of the first parameter or buffer; CPU for a model without any."""
        for tensor in (*self.parameters(), *self.buffers()):
            return tensor.device
        return torch.device("cpu")

    def trainable_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Parameters that require gradients."""
        return (p for p in self.parameters(recurse) if p.requires_grad)

    def non_trainable_parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Parameters that do not require gradients."""
        return (p for p in self.parameters(recurse) if not p.requires_grad)

    def trainable_named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that require gradients."""
        return ((n, p) for n, p in self.named_parameters(recurse=recurse) if p.requires_grad)

    def non_trainable_named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that do not require gradients."""
        return ((n, p) for n, p in self.named_parameters(recurse=recurse) if not p.requires_grad)

    def trainable_param_groups(self, by_layer: bool = False) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer.

        One group; or, with a ``bias_weight_decay`` in the configuration, two: biases, all other one-dimensional parameters
        (normalisation) and what a layer lists in ``bias_like`` get that weight decay, the rest the optimizer's. Parts that have
        ``trainable_param_groups`` themselves (Hugging Face encoders) decide on the learning rates and weight decays of their parameters.

        Args:
            by_layer: one group, or two, for each layer of the encoder, with its distance from the top under ``layer``: 0 for all that is
                not in the encoder, 1 for its last layer, and so on down to its stem. The top comes first.

        Raises:
            ConfigError: ``by_layer``, and the model does not tell its layers.
        """
        decay = getattr(self, "bias_weight_decay", None)
        depths = self._layers().depths() if by_layer else {}
        own, small = self._options_of_parts(), self._bias_like()
        groups: dict[tuple[int, float, float], dict[str, Any]] = {}
        for name, parameter in self.trainable_named_parameters():
            options = dict(own.get(id(parameter), {}))
            if decay is not None and (name.endswith("bias") or parameter.dim() <= 1 or id(parameter) in small):
                options.setdefault("weight_decay", decay)
            layer = depths.get(id(parameter), -1) + 1
            options |= {"layer": layer} if by_layer else {}
            key = (layer, options.get("lr", -1.0), options.get("weight_decay", -1.0))
            groups.setdefault(key, {"params": [], **options})["params"].append(parameter)
        return [groups[key] for key in sorted(groups)]

    def _bias_like(self) -> set[int]:
        """``id`` of the parameters that parts list in ``bias_like``."""
        modules = self.modules()
        return {id(getattr(module, name)) for module in modules for name in getattr(module, "bias_like", ())}

    def _options_of_parts(self) -> dict[int, dict[str, Any]]:
        """``id`` of parameters of parts that make groups of their own -> options of their group."""
        options: dict[int, dict[str, Any]] = {}
        for module in self.modules():
            own: Any = getattr(module, "trainable_param_groups", None)
            if own is not None and not isinstance(module, LearningParts):
                for group in own():
                    rest = {key: value for key, value in group.items() if key != "params"}
                    options |= {id(p): rest for p in group["params"]}
        return options

    def parameter_summary(self, verbose: bool = False) -> ParameterSummary:
        """Numbers of elements; ``verbose`` logs them too."""
        trainable = sum(p.numel() for p in self.trainable_parameters())
        frozen = sum(p.numel() for p in self.non_trainable_parameters())
        buffers = sum(b.numel() for b in self.buffers())
        summary = ParameterSummary(trainable, frozen, buffers, trainable + frozen + buffers)
        if verbose:
            logger.info(
                "%s: %d trainable, %d frozen, %d buffer elements", type(self).__name__, trainable, frozen, buffers
            )
        return summary


def _stay_in_eval(part: nn.Module) -> None:
    for module in part.modules():
        # so that train() of a part wakes it no more than train() of the model
        if isinstance(module, Freezable):
            module._is_frozen = True
