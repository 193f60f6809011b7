from __future__ import annotations

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.narchs.net_arch import NetArch, smallest_length


class HalvingArch(NetArch):
    """Keeps every second frame.

    Args:
        num_feats: features a frame.
    """

    def __init__(self, num_feats: int = 3) -> None:
        super().__init__()
        self.num_feats = num_feats

    def in_shape(self):
        return (None, self.num_feats, None)

    def out_shape(self, in_shape=None):
        return (None, self.num_feats, None)

    def out_lengths(self, lengths):
        return lengths // 2


def test_config_carries_the_class_name_and_rebuilds_the_object():
    config = HalvingArch(5).get_config()
    assert config == {"class_name": "HalvingArch", "num_feats": 5}
    assert HalvingArch(**config).num_feats == 5
    rebuilt = NetArch.create(config)
    assert type(rebuilt) is HalvingArch
    assert rebuilt.get_config() == config


def test_create_explains_what_is_wrong():
    with pytest.raises(ConfigError, match="class_name"):
        NetArch.create({"num_feats": 3})
    with pytest.raises(KeyError, match="HalvingArch"):
        NetArch.create({"class_name": "HalvingArc"})
    with pytest.raises(ConfigError, match="num_feats"):
        NetArch.create({"class_name": "HalvingArch", "num_feat": 3})


def test_another_class_of_the_same_name_is_refused():
    with pytest.raises(ValueError, match="HalvingArch"):
        type("HalvingArch", (NetArch,), {"__module__": "elsewhere"})


def test_axes_and_minimum_length():
    arch = HalvingArch()
    assert (arch.in_dim(), arch.out_dim()) == (3, 3)
    assert arch.min_length == 2
    assert arch.out_lengths(torch.tensor([1, 2, 5])).tolist() == [0, 1, 2]


def test_an_architecture_without_outputs_is_an_error():
    with pytest.raises(ValueError, match="no input"):
        smallest_length(lambda lengths: lengths * 0)
