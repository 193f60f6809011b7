"""State dictionaries on their way to a file: contiguous, on the CPU, every shared tensor once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch

_Key = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...]]


def _identity(tensor: torch.Tensor) -> _Key | None:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    storage = tensor.untyped_storage().data_ptr()
    return storage, int(tensor.storage_offset()), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def pack_state(state: Mapping[str, torch.Tensor]) -> tuple[OrderedDict[str, torch.Tensor], dict[str, str]]:
    """Independent, contiguous CPU copies of ``state``, tied tensors once.

    Returns:
        ``(tensors, tied)``: ``tied`` maps the name of a tensor that was left out to the stored one that it is the same memory as.
    """
    tensors: OrderedDict[str, torch.Tensor] = OrderedDict()
    tied: dict[str, str] = {}
    first: dict[_Key, str] = {}
    for name, tensor in state.items():
        key = _identity(tensor)
        if key is not None and key in first:
            tied[name] = first[key]
            continue
        if key is not None:
            first[key] = name
        packed = tensor.detach().resolve_conj().resolve_neg().to("cpu")
        # a view of a larger storage would take that storage along into the file
        tensors[name] = packed.clone(memory_format=torch.contiguous_format)
    return tensors, tied
