"""BUILD: what an object's saved state does to the description of the object."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.checks import is_text
from hyperion_lite.pth.errors import PthFormatError, PthUnsupportedError, shorten
from hyperion_lite.pth.values import GlobalRef, NumpyDType, Opaque, TensorNode, TensorRef

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine


def apply_state(machine: Machine, target: Any, state: Any) -> None:
    """Give `target` the state that BUILD carries.

    Raises:
        PthFormatError: values that have no state, or a state of the wrong form.
    """
    kind = type(target)
    if kind is Opaque:
        if target.state is not None:
            raise PthFormatError(f"{shorten(target.qualified_name)} receives a state twice")
        target.state = state
    elif kind is NumpyDType:
        _set_dtype_state(target, state)
    elif isinstance(target, (OrderedDict, Counter)):
        machine.copy(len(state) if isinstance(state, dict) else 0)
        set_attributes(target.__dict__, kind, state)
    elif isinstance(target, (TensorRef, TensorNode)):
        set_tensor_attributes(machine, target, state)
    elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        from hyperion_lite.pth.numpy_values import set_array_state

        set_array_state(machine, target, state)
    else:
        name = target.qualified_name if kind is GlobalRef else kind.__name__
        raise PthFormatError(f"a state is set on {shorten(name)}, which has none")


def set_attributes(attributes: dict[str, Any], kind: type, state: Any) -> None:
    """Instance attributes such as the `_metadata` of a state dict; none may hide a method."""
    if state is None:
        return
    if type(state) is not dict:
        raise PthFormatError(f"the state of {kind.__name__} is a {type(state).__name__}")
    for name, value in state.items():
        if type(name) is not str or hasattr(kind, name):
            raise PthFormatError(f"attribute {shorten(name)} of {kind.__name__}")
        attributes[name] = value


def set_tensor_attributes(machine: Machine, target: TensorRef | TensorNode, state: Any) -> None:
    """Python attributes of a parameter or tensor subclass: a dictionary, or (dictionary, slots), or something else."""
    parts = state if type(state) is tuple and len(state) == 2 else (state,)
    if all(part is None or isinstance(part, dict) for part in parts):
        for part in parts:
            machine.copy(len(part or ()))
            target.attributes.update(part or {})
    else:
        target.attributes["state"] = state


def _set_dtype_state(target: NumpyDType, state: Any) -> None:
    """`(version, byte order, subarray, field names, fields, itemsize, alignment, flags[, metadata])`."""
    if type(state) is not tuple or len(state) < 8 or not all(type(state[index]) is int for index in (0, 5, 6, 7)):
        raise PthFormatError("malformed state of a numpy dtype")
    order = state[1].decode("latin-1") if type(state[1]) is bytes else state[1]
    if not is_text(order, "<", ">", "=", "|"):
        raise PthUnsupportedError(f"byte order {shorten(order)} of a numpy dtype")
    target.order = order
    target.plain = target.plain and all(part is None for part in state[2:5]) and len(state) == 8
