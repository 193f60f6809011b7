"""Keep the voiced positions of a batch: the others are cut out and the rest moves together."""

from __future__ import annotations

import logging

import torch

from hyperion_lite.core.padding import Padding

logger = logging.getLogger(__name__)


def select_voiced(
    x: torch.Tensor, padding: Padding | None, vad: torch.Tensor, minimum: int, name: str, unit: str
) -> tuple[torch.Tensor, Padding | None]:
    """Concatenate the positions of the last axis where ``vad`` is true, item by item.

    An item of which fewer than ``minimum`` positions are voiced is kept whole, and a warning names it: an embedding of the whole is
    worth more than none, and one item must not stop a batch.

    Args:
        x: (batch, time) or (batch, channels, time).
        padding: valid positions of ``x``.
        vad: (batch, time) bool (or 0/1), True = keep; what it says of padded positions does not matter.
        minimum: positions that the model needs.
        name: of the argument, for messages.
        unit: "samples" or "frames".

    Returns:
        ``x`` with a shorter last axis, and its padding.

    Raises:
        ValueError: another shape than (batch, time), or values other than 0 and 1.
        RuntimeError: ``vad`` on another device than ``x``.
    """
    keep = _check(x, vad, name, unit)
    if padding is not None:
        keep = keep & padding.mask
        lengths = padding.lengths
    else:
        lengths = torch.full((x.size(0),), x.size(-1), dtype=torch.int64, device=x.device)
    counts = keep.sum(dim=1)
    whole = counts < torch.clamp(lengths, max=minimum)
    if bool(whole.any()):
        items = torch.nonzero(whole).flatten().tolist()
        logger.warning("%s keeps fewer than %d %s of items %s: these items are used whole", name, minimum, unit, items)
        valid = torch.arange(x.size(-1), device=x.device)[None, :] < lengths[:, None]
        keep = torch.where(whole[:, None], valid, keep)
        counts = keep.sum(dim=1)
    longest = int(counts.max())
    order = torch.argsort((~keep).to(torch.uint8), dim=1, stable=True)[:, :longest]
    index = order if x.dim() == 2 else order[:, None, :].expand(-1, x.size(1), -1)
    selected = torch.gather(x, -1, index)
    new_padding = Padding.from_lengths(counts, x.size(0), longest, name)
    return (selected if new_padding is None else new_padding.fill(selected)), new_padding


def _check(x: torch.Tensor, vad: torch.Tensor, name: str, unit: str) -> torch.Tensor:
    expected = (x.size(0), x.size(-1))
    if not isinstance(vad, torch.Tensor) or tuple(vad.shape) != expected:
        shape = tuple(vad.shape) if isinstance(vad, torch.Tensor) else type(vad).__name__
        raise ValueError(
            f"{name} must have shape {expected}, one value for each of the {expected[1]} {unit} of the padded batch, got {shape}. "
            "vad_samples selects waveform samples, vad_feats selects feature frames; they are not interchangeable"
        )
    if vad.device != x.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} is on {vad.device} and the input on {x.device}"
        )
    if vad.dtype != torch.bool:
        if not bool(((vad == 0) | (vad == 1)).all()):
            raise ValueError(f"{name} must be bool (True = keep), got {vad.dtype} with values other than 0 and 1")
        vad = vad != 0
    return vad
