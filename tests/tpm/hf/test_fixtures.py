"""Encoders out of files of the original toolkit, against the hidden states it gave."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hyperion_lite.pth import open_pth
from hyperion_lite.tpm.hf import HFWav2Vec2, HFWavLM
from tests.helpers import shared_path

PREFIX = "model_state_dict.hf_feats."


@pytest.mark.parametrize(("name", "cls"), [("hf_wav2vec2", HFWav2Vec2), ("hf_wavlm", HFWavLM)])
def test_hidden_states_of_the_original(name, cls):
    folder = shared_path("fixtures/hyperion")
    config = json.loads((folder / f"{name}.json").read_text())["config"]["hf_feats"]
    encoder = cls.from_config(config).eval()
    with open_pth(folder / f"{name}.pth") as file:
        state = {key: torch.from_numpy(np.array(value)) for key, value in file.state_dict(PREFIX[:-1]).items()}
    encoder.load_state_dict(state)
    arrays = np.load(folder / f"{name}.npz")
    with torch.no_grad():
        out = encoder(torch.from_numpy(arrays["x"]))
    for index, state in enumerate(out.hidden_states):
        reference = arrays[f"hf_hidden_{index}"]
        assert np.abs(state.numpy() - reference).max() <= 5e-6 * max(1.0, np.abs(reference).max())
    assert np.abs(out.last_hidden_state.numpy() - arrays["hf_last"]).max() <= 2e-5
    theirs = {key: value for key, value in encoder.get_config().items() if key not in cls.own_config_keys}
    assert theirs == config
