"""Reduce what a pickle describes to plain values: a configuration has no objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.pth.values import Opaque, TensorRef

# by package: the module inside jsonargparse has changed between its releases
_NAMESPACES = {("argparse", "Namespace"), ("jsonargparse", "Namespace"), ("types", "SimpleNamespace")}
_PATH_CLASSES = {"PosixPath", "WindowsPath", "Path", "PurePosixPath", "PureWindowsPath", "PurePath"}
_MAX_DEPTH = 64
_MAX_VALUES = 200_000


def plain_config(value: Any, where: str = "model_cfg") -> Any:
    """``value`` with JSON types only.

    Enums (a class called on a string) become the string, numpy scalars numbers, paths strings, namespaces dictionaries, tuples lists.

    Raises:
        ModelFileError: anything else, or nesting and repetition without end; the message names the place.
    """
    return _Reducer().reduce(value, where, 0)


class _Reducer:
    """One reduction. Lists that stand in many places count each time, so that a few bytes cannot stand for millions of values."""

    def __init__(self) -> None:
        self._values = 0

    def reduce(self, value: Any, where: str, depth: int) -> Any:
        self._values += 1
        if depth > _MAX_DEPTH:
            raise ModelFileError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
        if self._values > _MAX_VALUES:
            raise ModelFileError(f"{where}: the configuration has more than {_MAX_VALUES} values")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        if isinstance(value, Mapping):
            return {
                str(self.reduce(k, where, depth + 1)): self.reduce(v, f"{where}.{str(k)[:80]}", depth + 1)
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.reduce(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, Opaque):
            return self._reduce_object(value, where, depth)
        if _is_scalar(value):
            return self.reduce(value.item(), where, depth + 1)
        raise ModelFileError(f"{where} holds a {_describe(value)}, which is no configuration value")

    def _reduce_object(self, value: Opaque, where: str, depth: int) -> Any:
        module = value.module.split(".")[0]
        if (module, value.name) in _NAMESPACES:
            content = value.state if isinstance(value.state, Mapping) else dict(value.items)
            return self.reduce(content, where, depth + 1)
        if module == "pathlib" and value.name in _PATH_CLASSES:
            return "/".join(str(part) for part in value.args).replace("//", "/")
        is_toolkit_enum = module == "hyperion" and len(value.args) == 1 and isinstance(value.args[0], str)
        if is_toolkit_enum and value.state is None and not value.items:
            return value.args[0]
        raise ModelFileError(
            f"{where} holds an object of class {value.module}.{value.name}, which is no configuration value; nothing of it was executed"
        )


def plain_number(value: Any) -> Any:
    """A metric or counter as a Python number where it can be one, else ``None``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return value.item() if _is_scalar(value) else None


def _is_scalar(value: Any) -> bool:
    # numpy scalars, which are also instances of float or int, and arrays of one element without axes
    return hasattr(value, "item") and getattr(value, "ndim", None) == 0


def _describe(value: Any) -> str:
    return "tensor" if isinstance(value, TensorRef) else type(value).__name__
