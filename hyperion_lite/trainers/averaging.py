"""Averages of the weights over training steps: stochastic weight averaging, and an exponential moving average.

The average is a set of tensors beside the model, split over ranks as the model is. To use it, it is swapped into the model for a while,
so that there is never a second network whose wrappers could differ.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.trainers.distribution import full_tensor, like_parameter

_COUNT = "n_averaged"
_PREFIX = "module."


class WeightAverage:
    """A running average of the parameters of ``model``.

    With ``decay`` it is exponential, ``average <- decay * average + (1 - decay) * parameter``, beginning with the first value (EMA).
    Without, all updates weigh the same (SWA: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
    UAI 2018). Buffers are those of the last update; :func:`update_batch_norm` replaces the statistics among them.

    Args:
        model: whose parameters are averaged. They are not changed.
        decay: of the exponential average, in (0, 1).

    Raises:
        ConfigError: ``decay`` is out of range.
    """

    def __init__(self, model: nn.Module, decay: float | None = None) -> None:
        if decay is not None and not 0.0 < decay < 1.0:
            raise ConfigError(f"the decay of an exponential average must be between 0 and 1, got {decay}")
        self._model = model
        self._decay = decay
        self.num_averaged = 0
        self._tensors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Take the present parameters into the average."""
        parameters = dict(self._model.named_parameters())
        for name, tensor in self._named_tensors():
            old = self._tensors.get(name)
            if old is None:
                self._tensors[name] = tensor.detach().clone()
            elif name in parameters and tensor.is_floating_point():
                weight = 1.0 - self._decay if self._decay is not None else 1.0 / (self.num_averaged + 1)
                # not lerp_: it does not know split tensors
                old.add_((tensor.detach() - old) * weight)
            else:
                old.copy_(tensor.detach())
        self.num_averaged += 1

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """The model with the averaged tensors in it; what they are at the end, statistics included, is kept in the average.

        Raises:
            ValueError: nothing was averaged yet.
        """
        if self.num_averaged == 0:
            raise ValueError("no weights were averaged yet, so there is no average to use")
        self._swap()
        try:
            yield self._model
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self._named_tensors():
            kept = tensor.detach().clone()
            # through .data, because tensors that a graph has saved are not meant here
            tensor.data.copy_(self._tensors[name])
            self._tensors[name] = kept

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        persistent = self._model.state_dict(keep_vars=True)
        for name, tensor in persistent.items():
            if isinstance(tensor, torch.Tensor):
                yield name, tensor

    def state_dict(self) -> OrderedDict[str, torch.Tensor]:
        """Whole tensors under ``module.`` and their names, and ``n_averaged``, as torch's averaged model has. Every rank takes part."""
        state = OrderedDict([(_COUNT, torch.tensor(self.num_averaged))])
        for name, tensor in self._tensors.items():
            state[_PREFIX + name] = full_tensor(tensor).detach()
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            ModelFileError: tensors that are missing or have other shapes.
        """
        self.num_averaged = int(state[_COUNT]) if _COUNT in state else 1
        loaded: dict[str, torch.Tensor] = {}
        for name, tensor in self._named_tensors():
            value = state.get(_PREFIX + name, state.get(name))
            if value is None or value.shape != tensor.shape:
                found = "missing" if value is None else f"of shape {tuple(value.shape)}"
                raise ModelFileError(f"averaged weights: {name} is {found}, it should have shape {tuple(tensor.shape)}")
            value = value.to(device=tensor.device, dtype=tensor.dtype).clone()
            loaded[name] = like_parameter(value, tensor)
        self._tensors = loaded


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms of ``model`` whose statistics training moves; those of frozen parts are not among them."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats and m.training]


@contextmanager
def update_batch_norm(model: nn.Module) -> Iterator[None]:
    """The statistics of all batch norms become the plain average over the forward passes inside.

    Mean, and unbiased variance, of each batch count the same. The model must be in training mode; frozen parts keep their statistics.
    """
    norms = batch_norms(model)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
