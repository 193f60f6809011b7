"""Putting the tensors of a pretrained model into the encoder, and saying what does not fit."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.serialization.names import clean_names, match_weight_norm

logger = logging.getLogger(__name__)

_MOST_NAMES = 20
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")

# parts of models with a task head, of pretraining and of decoders, which the bare encoder does not have
_HEADS = re.compile(
    r"^(?:model\.)?(?:lm_head|quantizer|project_q|project_hid|project_h|classifier|projector|tdnn|objective|layer_weights|final_proj|label_embs\w*|"
    r"ctc_proj|decoder|proj_out|dropout_features|feature_extractor_head)(?:\.|$)"
)
_MAY_BE_MISSING = ("masked_spec_embed",)


def encoder_state(
    state: Mapping[str, torch.Tensor], prefixes: Collection[str], expected: Collection[str], where: Path
) -> OrderedDict[str, torch.Tensor]:
    """Tensors of the encoder under the names of the bare model: prefixes of models with a head stripped, weight norm respelt.

    Raises:
        ModelFileError: two tensors get one name.
    """
    stripped: OrderedDict[str, torch.Tensor] = OrderedDict()
    try:
        cleaned = clean_names(state)
    except ValueError as error:
        raise ModelFileError(f"{where}: {error}") from error
    prefixed = [prefix for prefix in prefixes if any(name.startswith(prefix) for name in cleaned)]
    for name, tensor in cleaned.items():
        short = next((name[len(prefix) :] for prefix in prefixed if name.startswith(prefix)), name)
        if short in stripped:
            raise ModelFileError(f"{where}: two tensors are called {short!r} once {name!r} has lost its prefix")
        stripped[short] = tensor
    return match_weight_norm(stripped, expected)


def load_weights(
    model: nn.Module, state: Mapping[str, torch.Tensor], where: Path, dtype: torch.dtype | None, kept_layers: int | None
) -> None:
    """Copy ``state`` into ``model``.

    Args:
        model: the bare encoder; changed only when everything fits.
        state: what :func:`encoder_state` gives.
        where: for messages.
        dtype: of the parameters; ``None`` for that of the stored tensors.
        kept_layers: layers of the model where it is meant to have fewer than the file; tensors of later ones are left.

    Raises:
        ModelFileError: tensors of the encoder are missing or of another shape; lists them.
    """
    targets = dict(model.state_dict(keep_vars=True))
    missing = [name for name in targets if name not in state]
    shapes = [
        f"{name}: the file has {tuple(state[name].shape)}, the model needs {tuple(target.shape)}"
        for name, target in targets.items()
        if name in state and state[name].shape != target.shape
    ]
    problems = [f"wrong shapes: {_listed(shapes)}"] if shapes else []
    needed = [name for name in missing if name not in _MAY_BE_MISSING]
    if needed:
        problems.append(f"missing tensors: {_listed(needed)}")
    if problems:
        raise ModelFileError(f"the weights in {where} do not fit {type(model).__name__}. {'. '.join(problems)}")
    if missing:
        logger.info("%s has no %s, which keeps its random values", where, _listed(missing))
    _report_unused(state, targets, where, kept_layers)
    with torch.inference_mode(False), torch.no_grad():
        for name, target in targets.items():
            if target.is_floating_point():
                kind = dtype or (state[name].dtype if name in state else target.dtype)
                # assigning .data keeps the parameter object
                target.data = target.data.to(kind)
            if name in state:
                target.data.copy_(state[name])


def _report_unused(
    state: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor], where: Path, kept_layers: int | None
) -> None:
    unused = [name for name in state if name not in targets]
    layers = {int(match[1]) for name in unused if (match := _LAYER.search(name))}
    dropped = set() if kept_layers is None else {layer for layer in layers if layer >= kept_layers}
    if dropped:
        logger.info("%s: layers %d to %d are left out", where, min(dropped), max(dropped))
    other = [
        name
        for name in unused
        if not _HEADS.match(name) and not ((match := _LAYER.search(name)) and int(match[1]) in dropped)
    ]
    if other:
        logger.warning("%s: tensors that the encoder has no place for are ignored: %s", where, _listed(other))


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
