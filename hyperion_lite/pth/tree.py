"""Walking what a file holds: how deep it is, which tensors are in it, and what they are called. Never recursive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from hyperion_lite.pth.errors import PthLimitError, shorten
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.values import Opaque, StorageRef, TensorNode, TensorRef

# What a tensor is called that is itself the whole content of a file.
ROOT_NAME = "tensor"
_LEAVES = frozenset({str, int, float, bool, bytes, type(None), complex, bytearray, range})


def key_text(key: Any) -> str:
    """How a dictionary key appears in a dotted name."""
    if type(key) is str:
        return key
    if type(key) is bytes:
        return key.decode("utf-8", "backslashreplace")
    if type(key) is Opaque and len(key.args) == 1 and type(key.args[0]) is str:
        # An enum member, named by its value.
        return key.args[0]
    if isinstance(key, Opaque):
        return shorten(key.qualified_name)[1:-1]
    return shorten(key)


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """The values directly inside `value` with their keys; leaves without any are not asked."""
    if isinstance(value, dict):
        yield from value.items()
        yield from _odd_keys(value)
        attributes = getattr(value, "__dict__", None)
        if attributes:
            yield from attributes.items()
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        yield from enumerate(value)
    elif isinstance(value, TensorRef):
        yield from value.attributes.items()
    elif isinstance(value, TensorNode):
        yield from value.parts.items()
        yield from value.attributes.items()
    elif isinstance(value, Opaque):
        yield from _opaque_children(value)
    elif type(value) is slice:
        yield from (("start", value.start), ("stop", value.stop), ("step", value.step))
    elif type(value).__module__ == "numpy" and getattr(value, "dtype", "") == "O":
        yield from enumerate(value.ravel().tolist())


def _odd_keys(value: Mapping) -> Iterator[tuple[str, Any]]:
    """Keys that are containers or tensors themselves."""
    for index, key in enumerate(value):
        if type(key) not in _LEAVES:
            yield f"key{index}", key


def _opaque_children(value: Opaque) -> Iterator[tuple[Any, Any]]:
    state = value.state
    if isinstance(state, dict):
        yield from state.items()
    elif type(state) is tuple and len(state) == 2 and all(part is None or isinstance(part, dict) for part in state):
        for part in state:
            yield from (part or {}).items()
    elif state is not None:
        yield "state", state
    yield from value.items
    yield from (("keys", key) for key, _ in value.items if type(key) not in _LEAVES)
    yield from enumerate(value.elements)
    yield from (("args", value.args), ("kwargs", value.kwargs), ("callee", value.callee))


class Survey:
    """One pass over everything a file holds.

    Attributes:
        tensors: each `TensorRef` once.
        storages: storages that are in the tree by themselves.
        holders: identities of the values that lead to a tensor.
    """

    def __init__(self, root: Any, limits: Limits) -> None:
        self.tensors: list[TensorRef] = []
        self.storages: list[StorageRef] = []
        self.holders: set[int] = set()
        self._heights: dict[int, int] = {}
        self._max_depth = limits.max_depth
        self._walk(root)

    def _walk(self, root: Any) -> None:
        """Depth first, children before parents; a value that contains itself does not count as its own child."""
        heights = self._heights
        # The key keeps the pair of each value alive for as long as its identity is used.
        stack = [(root, iter([("", root)]))]
        above: list[list] = [[0, False]]
        while stack:
            value, rest = stack[-1]
            state = above[-1]
            for _, child in rest:
                if type(child) in _LEAVES:
                    continue
                key = id(child)
                height = heights.get(key)
                if height is None:
                    heights[key] = 0
                    if len(stack) > self._max_depth:
                        raise self._too_deep()
                    stack.append((child, children(child)))
                    above.append([0, self._is_tensor(child)])
                    break
                state[0] = max(state[0], height)
                state[1] = state[1] or key in self.holders
            else:
                stack.pop()
                above.pop()
                if stack:
                    self._finish(value, state, above[-1])

    def _too_deep(self) -> PthLimitError:
        return PthLimitError(f"values nested more than {self._max_depth} deep (Limits.max_depth)")

    def _is_tensor(self, value: Any) -> bool:
        if type(value) is TensorRef:
            self.tensors.append(value)
            return True
        if type(value) is StorageRef:
            self.storages.append(value)
        return False

    def _finish(self, value: Any, state: list, parent: list) -> None:
        height, holds = state[0] + 1, state[1]
        if height > self._max_depth:
            raise self._too_deep()
        self._heights[id(value)] = height
        if holds:
            self.holders.add(id(value))
        parent[0] = max(parent[0], height)
        parent[1] = parent[1] or holds


def name_tensors(root: Any, survey: Survey, limits: Limits) -> tuple[dict[str, TensorRef], list[str]]:
    """Every way to reach a tensor, as a dotted name.

    Returns:
        The tensors by name, in the order of the file; and the names that were made distinct by `#2` and so on.

    Raises:
        PthLimitError: more names than `limits` allows.
    """
    names: dict[str, TensorRef] = {}
    renamed: list[str] = []
    numbers: dict[str, int] = {}
    chars = visits = 0
    on_path: set[int] = set()
    stack: list[tuple[int, str, Iterator[tuple[Any, Any]]]] = [(0, "", iter([("", root)]))]
    while stack:
        owner, prefix, rest = stack[-1]
        for key, child in rest:
            if id(child) not in survey.holders or id(child) in on_path:
                continue
            visits += 1
            name = f"{prefix}.{key_text(key)}" if prefix else key_text(key)
            chars += len(name)
            if visits > 4 * limits.max_names or len(names) >= limits.max_names or chars > limits.max_name_chars:
                raise PthLimitError(f"more than {len(names)} tensor names (Limits.max_names, max_name_chars)")
            if type(child) is TensorRef:
                name = name or ROOT_NAME
                if name in names:
                    name = _free_name(name, names, numbers)
                    renamed.append(name)
                names[name] = child
            on_path.add(id(child))
            stack.append((id(child), name, children(child)))
            break
        else:
            stack.pop()
            on_path.discard(owner)
    return names, renamed


def _free_name(name: str, names: dict[str, TensorRef], numbers: dict[str, int]) -> str:
    number = numbers.get(name, 1) + 1
    while f"{name}#{number}" in names:
        number += 1
    numbers[name] = number
    return f"{name}#{number}"


class TensorMap(Mapping[str, TensorRef]):
    """The tensors of a file by dotted name, in the order of the file.

    Attributes:
        renamed: names that were made distinct by `#2` and so on: two keys gave the same dotted name.
    """

    def __init__(self, names: dict[str, TensorRef], renamed: list[str]) -> None:
        self._names = names
        self.renamed = renamed

    def __getitem__(self, name: str) -> TensorRef:
        return self._names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<TensorMap of {len(self)} tensors>"

    @property
    def shared(self) -> dict[str, list[str]]:
        """Names of the tensors that look into one storage, by storage key, where there are several."""
        groups: dict[str, list[str]] = {}
        for name, tensor in self._names.items():
            if tensor.storage is not None:
                groups.setdefault(tensor.storage.base.key, []).append(name)
        return {key: names for key, names in groups.items() if len(names) > 1}

    @property
    def duplicates(self) -> list[list[str]]:
        """Groups of names of one and the same view of a storage (tied weights)."""
        groups: dict[Any, list[str]] = {}
        for name, tensor in self._names.items():
            if tensor.storage is not None:
                place = (tensor.storage.base.key, tensor.storage.base_offset + tensor.offset)
                view = (tensor.dtype, tensor.shape, tensor.stride, tensor.conj, tensor.neg)
                groups.setdefault((place, view), []).append(name)
        return [names for names in groups.values() if len(names) > 1]
