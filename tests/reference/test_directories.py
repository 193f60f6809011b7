"""Model directories give what the reference computes, also those that were converted from single files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.reference.comparing import tensors_for
from tests.reference.test_other_files import AUDIO, ENCODER, FEATS, ON_FEATURES, ON_WAVES, loads, wave


class TestDirectories:
    def write(self, folder, config, state, **more):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: value.contiguous().clone() for name, value in state.items()}, folder / "model.safetensors")
        for name, weights in more.items():
            save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / f"{name}.safetensors")
        return folder

    @pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
    def test_prefixes_and_counts_of_converted_files(self, tmp_path, prefix):
        tensors = tensors_for(ON_WAVES, wave(), 22, "modern")
        state = {prefix + name: value for name, value in tensors.table.items()}
        state |= {"n_averaged": torch.tensor(3)} if prefix else {}
        loads(self.write(tmp_path / "model", ON_WAVES, state), ON_WAVES, tensors, wave(), "modern")

    def test_a_bank_of_the_older_release(self, tmp_path):
        tensors = tensors_for(ON_WAVES, wave(), 23, "legacy")
        loads(self.write(tmp_path / "model", ON_WAVES, tensors.table), ON_WAVES, tensors, wave(), "legacy")

    @pytest.mark.parametrize(
        "audio", [{"audio_feat": "kanbayashi_logfb"}, {"fb_type": "linear"}, {"audio_feat": "log_spec"}]
    )
    def test_features_that_do_not_tell_the_release_are_modern(self, tmp_path, audio):
        count = 257 if "log_spec" in audio.values() else 20
        xvector = {**ON_FEATURES, "resnet_enc": {**ENCODER, "in_feats": count}}
        config = {**ON_WAVES, "feats": {**FEATS, "audio_feats": {**AUDIO, **audio}}, "xvector": xvector}
        tensors = tensors_for(config, wave(), 24, "modern")
        loads(self.write(tmp_path / "model", config, tensors.table), config, tensors, wave(), "modern")

    def test_averaged_weights(self, tmp_path):
        tensors, averaged = (tensors_for(ON_WAVES, wave(), seed, "modern") for seed in (25, 26))
        swa = {"n_averaged": torch.tensor(2)} | {f"module.{name}": value for name, value in averaged.table.items()}
        folder = self.write(tmp_path / "model", ON_WAVES, tensors.table, swa_model=swa)
        loads(folder, ON_WAVES, tensors, wave(), "modern")
        loads(folder, ON_WAVES, averaged, wave(), "modern", model_name="swa_model")
