"""From a list of items to one batch: sort by length, pad, stack, and keep every field in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from hyperion_lite.data.item_list import joined_rows, new_cpu_tensor

LENGTHS_SUFFIX = "_lengths"

Batch: TypeAlias = dict[str, Any]


def collate(
    items: Sequence[Mapping[str, Any]],
    length_key: str = "audio",
    id_key: str = "id",
    time_axes: Mapping[str, int] | None = None,
) -> Batch:
    """Make a batch of items, longest first.

    Items of equal length keep their order. Every field is reordered in the same way, so row ``i`` of all fields is one item. The items
    and their values are not changed.

    Args:
        items: mappings with the same keys.
        length_key: field that gives the order, an array of any length along its time axis.
        id_key: field that names the items in messages.
        time_axes: field -> axis that varies from item to item, for arrays of two or more axes whose time axis is not the first one.

    Returns:
        For each field, by the type of its values:

        * array or list of numbers, one or more axes: padded at the end with 0 (``False`` for bool) and stacked, ``(batch, max_length,
          ...)`` in the dtype of the items, with ``<field>_lengths`` ``(batch,)`` int64, the numbers of valid positions;
        * number or array without axes: a tensor ``(batch,)``: int64, bool, torch's default float type for Python numbers, else the
          dtype of the values;
        * string (``None`` among them is kept), and anything else: a list in batch order.

    Raises:
        ValueError: no items; items with different keys; a field of different kinds, or whose arrays differ in more than the time
            axis; a field whose ``<field>_lengths`` would replace another field. The field and the item are named.
    """
    if not items:
        raise ValueError("cannot make a batch of no items")
    _check_keys(items, id_key)
    if length_key not in items[0]:
        raise ValueError(f"the items have no field {length_key!r} to sort by; their fields are {', '.join(items[0])}")
    axes = dict(time_axes or {})
    lengths = [_length(item, length_key, axes.get(length_key, 0), id_key) for item in items]
    order = sorted(range(len(items)), key=lambda index: -lengths[index])
    names = [str(items[index].get(id_key, f"number {index}")) for index in order]
    batch: Batch = {}
    collated: Any
    for field in items[0]:
        joined = joined_rows(items, field, order)
        if joined is not None:
            field_lengths: torch.Tensor | None
            collated, field_lengths = joined, torch.full((len(items),), joined.shape[1], dtype=torch.int64)
        else:
            values = [items[index][field] for index in order]
            collated, field_lengths = _collate_field(field, values, names, axes.get(field, 0))
        batch[field] = collated
        if field_lengths is not None:
            if field + LENGTHS_SUFFIX in items[0]:
                raise ValueError(
                    f"field {field + LENGTHS_SUFFIX!r} of the items would be replaced by the lengths of field {field!r}"
                )
            batch[field + LENGTHS_SUFFIX] = field_lengths
    return batch


def _check_keys(items: Sequence[Mapping[str, Any]], id_key: str) -> None:
    first = items[0]
    for index, item in enumerate(items):
        if item.keys() != first.keys():
            only_first = [key for key in first if key not in item]
            only_item = [key for key in item if key not in first]
            name, first_name = item.get(id_key, index), first.get(id_key, 0)
            parts = [f"{name!r} lacks {', '.join(map(repr, only_first))}"] if only_first else []
            parts += [f"{first_name!r} lacks {', '.join(map(repr, only_item))}"] if only_item else []
            raise ValueError(f"items of one batch must have the same fields: item {' and item '.join(parts)}")


def _length(item: Mapping[str, Any], field: str, axis: int, id_key: str) -> int:
    if _kind(item[field]) not in ("array", "empty"):
        raise ValueError(
            f"field {field!r} of item {item.get(id_key)!r} is a {type(item[field]).__name__}, not an array with a length"
        )
    return int(_as_tensor(item[field]).shape[axis])


def _kind(value: Any) -> str:
    """``array``, ``number``, ``text``, ``missing``, ``empty`` (a list of nothing) or ``object``."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "buifc":
            return "object"
        return "array" if value.ndim else "number"
    if isinstance(value, (bool, int, float)):
        return "number"
    if isinstance(value, (list, tuple)) and not value:
        return "empty"
    if isinstance(value, (list, tuple)) and all(isinstance(entry, (bool, int, float, np.number)) for entry in value):
        return "array"
    return "object"


def _collate_field(field: str, values: list[Any], names: list[str], axis: int) -> tuple[Any, torch.Tensor | None]:
    kinds = [_kind(value) for value in values]
    distinct = set(kinds)
    if "array" in distinct and distinct <= {"array", "empty"}:
        like = _as_tensor(values[kinds.index("array")])
        return _pad(field, [_as_tensor(value) if len(value) else like.new_empty(0) for value in values], names, axis)
    if distinct == {"number"}:
        return _stack_numbers(field, values), None
    if distinct <= {"text", "missing"} or distinct <= {"object", "empty", "missing"}:
        return values, None
    other = next(index for index, kind in enumerate(kinds) if kind != kinds[0])
    raise ValueError(
        f"field {field!r} is {_article(kinds[0])} for item {names[0]!r} but {_article(kinds[other])} for item {names[other]!r}; "
        "a field has one kind in a batch"
    )


def _article(kind: str) -> str:
    return kind if kind in ("missing", "empty") else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if isinstance(value, (list, tuple)) and array.dtype == np.float64:
        return torch.tensor(array, dtype=torch.get_default_dtype())
    # torch takes neither foreign byte orders nor negative strides, and warns about read-only memory
    if not array.dtype.isnative or not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(array)


def _stack_numbers(field: str, values: list[Any]) -> torch.Tensor:
    try:
        if all(isinstance(value, (bool, int, float)) and not isinstance(value, np.generic) for value in values):
            # a plain list of bool, int or float: torch picks bool, int64 or the default float type, the widest of what is there
            return torch.tensor(values)
        tensors = [torch.as_tensor(value) for value in values]
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:
        raise ValueError(f"field {field!r}: {error}; integers must fit in 64 bits") from error
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.stack([tensor.to(dtype) for tensor in tensors])


def _pad(field: str, tensors: list[torch.Tensor], names: list[str], axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    first = tensors[0]
    if not -first.ndim <= axis < first.ndim:
        raise ValueError(f"field {field!r} has {first.ndim} axes; its time axis cannot be {axis}")
    axis %= first.ndim
    fixed = _without(first.shape, axis)
    dtype = first.dtype
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.ndim != first.ndim or _without(tensor.shape, axis) != fixed:
            raise ValueError(
                f"field {field!r} has shape {tuple(first.shape)} for item {names[0]!r} but {tuple(tensor.shape)} for item {name!r}; "
                f"only axis {axis} may differ (name another one in time_axes)"
            )
        dtype = torch.promote_types(dtype, tensor.dtype)
    lengths = torch.tensor([tensor.shape[axis] for tensor in tensors], dtype=torch.int64)
    shape = [len(tensors), *first.shape]
    shape[axis + 1] = int(lengths.max())
    if all(_in_numpy(tensor) for tensor in tensors):
        padded = new_cpu_tensor(shape, dtype)
        # the copies of torch start its thread pool for long rows, and wait for it wherever the processors are busy
        _fill(padded.numpy(), [tensor.numpy() for tensor in tensors], axis)
    else:
        padded = first.new_empty(shape, dtype=dtype, requires_grad=False)
        for row, tensor in zip(padded, tensors, strict=True):
            length = tensor.shape[axis]
            row.narrow(axis, 0, length).copy_(tensor.detach())
            row.narrow(axis, length, shape[axis + 1] - length).zero_()
    return padded, lengths


def _in_numpy(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and not tensor.requires_grad and tensor.dtype is not torch.bfloat16


def _fill(padded: np.ndarray, arrays: list[np.ndarray], axis: int) -> None:
    if axis:
        # views whose first axis, after that of the batch, is time
        padded, arrays = np.moveaxis(padded, axis + 1, 1), [np.moveaxis(array, axis, 0) for array in arrays]
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
        row[len(array) :] = 0


def _without(shape: Sequence[int], axis: int) -> list[int]:
    return [size for index, size in enumerate(shape) if index != axis]
