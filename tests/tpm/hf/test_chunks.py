"""Long items in chunks: exact frame counts, an exact convolutional part, a transformer that sees its context only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.tpm.hf import HFWavLM, chunks
from tests.tpm.hf.small_encoders import CONV_ENCODERS, ENCODERS, make_encoder, waveforms

LONG = 9000


def relative_difference(ours, theirs):
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", CONV_ENCODERS)
def test_what_is_before_the_transformer_equals_the_whole(name):
    encoder = make_encoder(name)
    x = waveforms(LONG)
    with torch.no_grad():
        whole = encoder(x)
        for chunk in (800, 1111, 4000, LONG):
            pieces = encoder(x, chunk_length=chunk / 16000)
            assert relative_difference(pieces.hidden_states[0], whole.hidden_states[0]) <= 1e-5
            assert pieces.last_hidden_state.shape == whole.last_hidden_state.shape


@pytest.mark.parametrize("name", [n for n in ENCODERS if n != "whisper"])
def test_with_the_whole_as_context_chunks_change_nothing(name):
    encoder = make_encoder(name, left_encoder_context=10_000, right_encoder_context=10_000)
    x = waveforms(LONG)
    with torch.no_grad():
        whole, pieces = encoder(x), encoder(x, chunk_length=2000 / 16000)
    for ours, theirs in zip(pieces.hidden_states, whole.hidden_states, strict=True):
        assert relative_difference(ours, theirs) <= 1e-5
    assert relative_difference(pieces.last_hidden_state, whole.last_hidden_state) <= 1e-5


@pytest.mark.parametrize("name", ["wavlm-group", "wav2vec2-adapter", "bert-relative-key"])
@settings(max_examples=8, deadline=None)
@given(length=st.integers(1000, 7000), chunk=st.integers(400, 4000), left=st.integers(0, 20), right=st.integers(0, 20))
def test_no_frame_is_lost_or_shifted(name, length, chunk, left, right):
    encoder = _with_contexts(name, left, right)
    x = waveforms(length)
    with torch.no_grad():
        whole, pieces = encoder(x), encoder(x, chunk_length=chunk / 16000)
    assert pieces.last_hidden_state.shape == whole.last_hidden_state.shape
    assert relative_difference(pieces.hidden_states[0], whole.hidden_states[0]) <= 1e-5


def _with_contexts(name, left, right, known={}):  # noqa: B006 - one encoder for all examples
    encoder = known.setdefault(name, make_encoder(name))
    encoder.left_encoder_context, encoder.right_encoder_context = left, right
    return encoder


@pytest.mark.parametrize("name", ["wav2vec2-group", "wavlm-stable", "whisper", "bert-rotary"])
def test_every_item_is_cut_on_its_own_axis(name):
    encoder = make_encoder(name)
    lengths = [LONG, 700, 5000, 3000]
    batch = waveforms(*lengths, fill=float("nan"))
    with torch.no_grad():
        together = encoder(batch, torch.tensor(lengths), chunk_length=0.2)
        for row, length in enumerate(lengths):
            alone = encoder(batch[row : row + 1, :length], chunk_length=0.2).last_hidden_state
            assert int(together.last_lengths[row]) == alone.size(1)
            assert relative_difference(together.last_hidden_state[row, : alone.size(1)], alone[0]) <= 1e-5
            assert not together.last_hidden_state[row, alone.size(1) :].any()


def test_items_shorter_than_the_chunk_are_computed_whole():
    encoder = make_encoder("wavlm-group")
    x = waveforms(3000)
    with torch.no_grad():
        assert torch.equal(encoder(x, chunk_length=0.5).last_hidden_state, encoder(x).last_hidden_state)


def test_no_layer_sees_more_than_a_chunk_and_its_context():
    encoder = make_encoder("wavlm-group", left_encoder_context=7, right_encoder_context=3)
    seen = {"conv": 0, "layer": 0}

    def watch(kind, axis):
        def hook(module, args, output):
            seen[kind] = max(seen[kind], args[0].size(axis))

        return hook

    for layer in encoder.encoder_layers():
        layer.register_forward_hook(watch("layer", 1))
    encoder.hf_model.feature_extractor.conv_layers[0].register_forward_hook(watch("conv", 2))
    with torch.no_grad():
        encoder(waveforms(200_000), chunk_length=0.25)
    chunk = 4000 // encoder.hop_samples
    assert seen["layer"] == chunk + 7 + 3
    assert seen["conv"] <= 4000 + encoder.min_samples


def test_a_longer_context_comes_closer_to_the_whole():
    settings_ = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    conv = {"conv_dim": [16, 16], "conv_kernel": [10, 8], "conv_stride": [10, 8], "num_conv_pos_embeddings": 16}
    torch.manual_seed(3)
    encoder = HFWavLM(ignore_pretrained=True, **settings_, **conv).eval()
    x = waveforms(40_000)
    cosines = []
    with torch.no_grad():
        whole = encoder(x).last_hidden_state
        for context in (0, 16, 64, 256):
            encoder.left_encoder_context = encoder.right_encoder_context = context
            pieces = encoder(x, chunk_length=0.5).last_hidden_state
            cosines.append(float(torch.cosine_similarity(pieces, whole, dim=-1).mean()))
    assert cosines[3] > max(cosines[:3]) and cosines[0] > 0.9 and cosines[3] > 0.9999, cosines


def test_a_chunk_shorter_than_a_frame_is_an_error():
    with pytest.raises(ValueError, match="shorter than a frame"):
        make_encoder("wavlm-group")(waveforms(2000), chunk_length=0.001)
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="chunk_length must be"):
            make_encoder("wavlm-group")(waveforms(2000), chunk_length=value)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 50), st.integers(0, 40), st.integers(0, 40))
def test_chunks_cover_every_frame_once(frames, chunk, left, right):
    pieces = list(chunks.frame_chunks(frames, chunk, left, right))
    kept = [t for piece in pieces for t in range(piece.keep_from, piece.keep_to)]
    assert kept == list(range(frames))
    for piece in pieces:
        assert 0 <= piece.start <= piece.keep_from < piece.keep_to <= piece.stop <= frames
        assert piece.start == max(piece.keep_from - left, 0) and piece.stop == min(piece.keep_to + right, frames)
