"""Arbitrary nested values and tensors that torch saves are read back equal: all protocols, both containers, shared views."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.pth import PthError, open_pth
from tests.pth.saving import assert_same, saved

_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32,
]  # fmt: skip


@st.composite
def storages(draw: st.DrawFn) -> torch.Tensor:
    """A flat tensor that others are views of."""
    dtype = draw(st.sampled_from(_DTYPES))
    count = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    octets = torch.empty(0, dtype=dtype).element_size() * count
    return torch.randint(0, 256, (octets,), dtype=torch.uint8, generator=generator).view(dtype)


@st.composite
def views(draw: st.DrawFn, flat: torch.Tensor) -> torch.Tensor:
    """Any shape, stride and offset that stays inside."""
    rank = draw(st.integers(0, 4))
    shape = [draw(st.integers(0, 4)) for _ in range(rank)]
    stride = [draw(st.integers(0, 7)) for _ in range(rank)]
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else -1
    if reach >= flat.numel():
        return flat
    offset = draw(st.integers(0, max(flat.numel() - reach - 1, 0)))
    view = torch.as_strided(flat, shape, stride, offset)
    if view.is_complex() and view.dtype != torch.complex32 and draw(st.booleans()):
        return view.conj()
    if view.is_floating_point() and draw(st.booleans()):
        return torch.nn.Parameter(view.detach(), requires_grad=draw(st.booleans()))
    return view


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.integers(-100, 100).map(np.int64), st.floats(allow_nan=False).map(np.float64),
)  # fmt: skip


@st.composite
def contents(draw: st.DrawFn) -> Any:
    flats = draw(st.lists(storages(), min_size=1, max_size=3))
    tensors = st.sampled_from(flats).flatmap(views)
    arrays = st.lists(st.integers(0, 255), max_size=6).map(lambda values: np.array(values, np.uint8))
    return draw(
        st.recursive(
            st.one_of(tensors, tensors, _SCALARS, arrays),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4),
                st.lists(inner, max_size=3).map(tuple),
                st.dictionaries(st.text(max_size=4) | st.integers(-5, 5), inner, max_size=4),
                st.dictionaries(st.text(max_size=4), inner, max_size=4).map(OrderedDict),
            ),
            max_leaves=10,
        )
    )


def same_sharing(expected: Any, found: Any, pairs: dict[int, int]) -> None:
    """Tensors share a storage exactly where they did."""
    if isinstance(expected, torch.Tensor):
        if expected.untyped_storage().data_ptr():
            known = pairs.setdefault(expected.untyped_storage().data_ptr(), id(found.storage))
            assert known == id(found.storage)
    elif isinstance(expected, dict):
        for key, value in expected.items():
            same_sharing(value, found[key], pairs)
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(expected, found, strict=True):
            same_sharing(one, other, pairs)


@given(contents(), st.integers(2, 5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_what_torch_saves_is_read_back(value: Any, protocol: int, zipped: bool) -> None:
    with open_pth(saved(value, protocol, zipped), verify="all") as file:
        assert_same(file, file.root, value)
        pairs: dict[int, int] = {}
        same_sharing(value, file.root, pairs)
        assert len(set(pairs.values())) == len(pairs)
        # Every tensor has a name, and every name reads.
        for name, tensor in file.tensors.items():
            assert file.read_tensor(name).shape == tensor.shape


@given(contents(), st.integers(2, 5), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_files_raise_nothing_but_our_error(
    value: Any, protocol: int, zipped: bool, data: st.DataObject
) -> None:
    raw = bytearray(saved(value, protocol, zipped))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position] = data.draw(st.integers(0, 255))
    try:
        with open_pth(bytes(raw), verify="all") as file:
            for name in file.tensors:
                file.read_tensor(name)
                file.read_torch(name)
    except PthError:
        pass
