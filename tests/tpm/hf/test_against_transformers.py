"""One utterance, no padding: our drive of the modules gives what transformers itself gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tpm.hf.small_encoders import ENCODERS, PROCESSORS, encoder_class, make_encoder, make_original, waveforms

TOLERANCE = 2e-5


def their_input(name, x, encoder):
    cls = ENCODERS[name][0]
    if cls == "HFWhisperEncoder":
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(**PROCESSORS[cls], chunk_length=1)
        return extractor(x[0].numpy(), sampling_rate=16000, return_tensors="pt").input_features
    if cls == "HFWav2Vec2Bert":
        from transformers import SeamlessM4TFeatureExtractor

        extractor = SeamlessM4TFeatureExtractor(**PROCESSORS[cls])
        features = extractor(x[0].numpy(), sampling_rate=16000, return_tensors="pt")
        return features.input_features[:, : int(features.attention_mask.sum())]
    from transformers import Wav2Vec2FeatureExtractor

    extractor = Wav2Vec2FeatureExtractor(do_normalize=True)
    return torch.as_tensor(np.array(extractor(x[0].numpy(), sampling_rate=16000).input_values))


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    scale = theirs.abs().max()
    assert (ours - theirs).abs().max() <= TOLERANCE * max(1.0, float(scale))


@pytest.mark.parametrize("name", ENCODERS)
def test_all_hidden_states_are_those_of_transformers(name):
    original, encoder = make_original(name), make_encoder(name)
    x = waveforms(16000 if name == "whisper" else 4011)
    model = original.encoder if name == "whisper" else original
    with torch.no_grad():
        theirs = model(their_input(name, x, encoder), output_hidden_states=True)
        ours = encoder(x)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == encoder.num_hidden_layers + 1
    for mine, other in zip(ours.hidden_states[:-1], theirs.hidden_states[:-1], strict=True):
        assert_close(mine, other)
    assert_close(ours.last_hidden_state, theirs.last_hidden_state)
    assert ours.last_hidden_state.size(-1) == encoder.output_size


@pytest.mark.parametrize("name", [n for n in ENCODERS if "adapter" not in n])
def test_the_last_state_of_the_list_is_the_last_hidden_state(name):
    out = make_encoder(name)(waveforms(2000))
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)


@pytest.mark.parametrize("name", ["wavlm-group", "wavlm-stable"])
def test_the_gradient_is_that_of_transformers(name):
    original, encoder = make_original(name), make_encoder(name)
    x = waveforms(3000)
    grads = []
    for model, wave in ((original, their_input(name, x, encoder)), (encoder, x)):
        model(wave).last_hidden_state.square().sum().backward()
        module = model if model is original else model.hf_model
        grads.append({n: p.grad for n, p in module.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for parameter, theirs in grads[0].items():
        assert (grads[1][parameter] - theirs).abs().max() <= 2e-4 * max(1.0, float(theirs.abs().max())), parameter


@pytest.mark.parametrize("name", ENCODERS)
def test_the_configuration_rebuilds_the_encoder(name):
    encoder = make_encoder(name)
    config = encoder.get_config()
    assert config["ignore_pretrained"] is True
    again = encoder_class(name).from_config(config)
    assert again.get_config() == config
    assert again.state_dict().keys() == encoder.state_dict().keys()
