"""The calls that rebuild numpy scalars, arrays and dtypes; numpy itself is imported only when a file holds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine


def _dtype(m: Machine, args: tuple) -> Any:
    from hyperion_lite.pth.numpy_values import make_dtype

    return make_dtype(m, args)


def _scalar(m: Machine, args: tuple) -> Any:
    from hyperion_lite.pth.numpy_values import make_scalar

    return make_scalar(m, args)


def _reconstruct(m: Machine, args: tuple) -> Any:
    from hyperion_lite.pth.numpy_values import make_empty_array

    return make_empty_array(m, args)


def _frombuffer(m: Machine, args: tuple) -> Any:
    from hyperion_lite.pth.numpy_values import make_array

    return make_array(m, args)


NUMPY_CALLS: dict[tuple[str, str], Callable[[Machine, tuple], Any]] = {("numpy", "dtype"): _dtype}
for _core in ("numpy.core", "numpy._core"):
    NUMPY_CALLS[f"{_core}.multiarray", "scalar"] = _scalar
    NUMPY_CALLS[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    NUMPY_CALLS[f"{_core}.numeric", "_frombuffer"] = _frombuffer
