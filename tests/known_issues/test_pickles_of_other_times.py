"""Files of protocol 4, files written by Python 2, dictionaries that were rebuilt from a list of pairs: not read, or read as empty.

And one integer of 2**63 among the metadata, which no tensor needs, ended the whole load. Right: all of them are read.
"""

from __future__ import annotations

import torch

from hyperion_lite.pth import open_pth
from tests.pth.handmade import checkpoint, name, tensor
from tests.pth.saving import WAYS, assert_same, saved


def test_every_protocol_in_both_containers() -> None:
    value = {"a": {"weight": torch.arange(6.0).view(2, 3)}, "epoch": 3, "name": "x" * 300, "set": frozenset((1,))}
    for protocol, zipped in WAYS:
        with open_pth(saved(value, protocol, zipped)) as file:
            assert_same(file, file.root["a"], value["a"])
            assert (file.root["epoch"], file.root["name"]) == (3, "x" * 300)


def old_text(value: str) -> bytes:
    """A ``str`` of Python 2: bytes without an encoding."""
    return b"U" + bytes([len(value)]) + value.encode("latin-1")


def test_texts_of_python_2() -> None:
    body = b"}(" + old_text("w") + tensor() + old_text("note") + old_text("caf\xe9") + b"u"
    with open_pth(checkpoint(body)) as file:
        assert list(file.tensors) == ["w"]
        assert file.read_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert set(file.root) == {"w", "note"}


def test_a_dictionary_made_from_pairs() -> None:
    pair = b"]" + old_text("w") + b"a" + tensor() + b"a"
    body = name("collections", "OrderedDict") + b"(](" + pair + b"etR"
    with open_pth(checkpoint(body)) as file:
        assert file.read_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_large_integers_among_the_metadata() -> None:
    for number in (2**63, 2**64 + 1, -(2**63) - 1, 10**400):
        value = {"w": torch.ones(2), "seed": number, "nested": [{"count": number}]}
        with open_pth(saved(value)) as file:
            assert file.root["seed"] == file.root["nested"][0]["count"] == number
            assert file.read_tensor("w").tolist() == [1, 1]
