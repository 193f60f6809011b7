"""The reference gives the numbers of the original toolkit and knows every tensor of its files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite.pth import open_pth
from tests.helpers import shared_path
from tests.reference import resnet2d
from tests.reference.comparing import distance
from tests.reference.front_end import front_end
from tests.reference.model import canonical, clean_names, run
from tests.reference.tensors import Scope, Tensors

FILES = [
    "dino_head",
    "ecapa",
    "fwseresnet34_chatt",
    "mfcc_resnet1d",
    "old_s_resnet1d",
    "old_s_resnet1d_nonzip",
    "resnet1d_basic_stride2",
    "resnet1d_sebasic",
    "resnet34",
    "subcenter_2embed",
    "trainer_ddp_ep0003",
    "trainer_ep0001",
    "trainer_swa_final",
]
TOLERANCE = 5e-6


@pytest.mark.parametrize("name", FILES)
def test_embeddings_logits_and_every_tensor_of_a_file(name):
    with open_pth(shared_path(f"fixtures/hyperion/{name}.pth")) as file:
        config: dict[str, Any] = file.root["model_cfg"]
        tensors = Tensors(clean_names(file.state_dict("model_state_dict", as_torch=True)))
    arrays = np.load(shared_path(f"fixtures/hyperion/{name.removesuffix('_nonzip')}.npz"))
    x = torch.from_numpy(arrays["x" if "x" in arrays else "x_feats"])
    embeddings, logits = run(tensors, x, config)
    x_vector = canonical(config).get("xvector", canonical(config))
    layer = x_vector["embed_layer"] if x_vector.get("head_type") != "dino" else 0
    assert distance(embeddings[layer], torch.from_numpy(arrays["embed"])) <= TOLERANCE
    assert distance(logits, torch.from_numpy(arrays["logits"])) <= TOLERANCE
    assert not tensors.unused()


def test_front_ends():
    arrays = np.load(shared_path("fixtures/hyperion/features.npz"))
    configs = json.loads(shared_path("fixtures/hyperion/features.json").read_text())
    x = torch.from_numpy(arrays["x"])
    compared = 0
    for name, entry in configs.items():
        if not isinstance(entry, dict) or "config" not in entry:
            continue
        tables = ("_fb", "_dct", "_lifter")
        state = {f"audio_feats.{t}": torch.from_numpy(arrays[f"{name}.{t}"]) for t in tables if f"{name}.{t}" in arrays}
        computed, stored = Tensors(), Tensors(state)
        feats = front_end(Scope(stored), x, canonical(entry["config"]), "legacy").transpose(1, 2)
        # float32 rounding grows in the logarithm of near silence and in small sliding variances
        assert (feats - torch.from_numpy(arrays[name])).abs().max() <= (4e-4 if "log_spec" in name else 1e-4), name
        front_end(Scope(computed), x, canonical(entry["config"]), "legacy")
        for table, value in state.items():
            assert (computed.table[table] - value).abs().max() <= 2e-6, (name, table)
        compared += 1
    assert compared == 37


def test_names_of_residual_networks():
    types = json.loads(shared_path("fixtures/hyperion/resnet_types.json").read_text())
    assert len(types) == 127
    for name, entry in types.items():
        se, block, depths, forced = resnet2d.resolve(name)
        assert (se, f"se{block}" if se else block, depths) == (entry["se"], entry["block"], entry["depths"]), name
        names = {"resb_channels": "widths", "endpoint_channels": "multilevel"}
        expected = {names.get(key, key): value for key, value in entry["forced"].items() if key != "multilevel"}
        assert forced == expected, name
