"""An item's hidden states are those it has alone, whatever it is batched with and whatever the padding holds."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import LengthsError, TooShortError
from hyperion_lite.tpm.hf import length_groups
from tests.tpm.hf.small_encoders import ENCODERS, make_encoder, waveforms

TOLERANCE = 1e-5

encoder_of = functools.cache(make_encoder)


@pytest.fixture(params=[0.0, 1.0], ids=["by-length", "one-padded-batch"])
def padded_share(request, monkeypatch):
    monkeypatch.setitem(length_groups._LARGEST_SHARE, "cpu", request.param)
    return request.param


def relative_difference(ours, theirs):
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3))


def check_items(encoder, batch, lengths):
    with torch.no_grad():
        together = encoder(batch, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            alone = encoder(batch[row : row + 1, :length])
            frames = alone.hidden_states[0].size(1)
            assert int(together.lengths[row]) == frames
            for ours, theirs in zip(together.hidden_states, alone.hidden_states, strict=True):
                assert relative_difference(ours[row, :frames], theirs[0]) <= TOLERANCE
                assert not ours[row, frames:].any()
            last = alone.last_hidden_state.size(1)
            assert int(together.last_lengths[row]) == last
            assert relative_difference(together.last_hidden_state[row, :last], alone.last_hidden_state[0]) <= TOLERANCE
            assert not together.last_hidden_state[row, last:].any()


@pytest.mark.parametrize("fill", [0.0, 3.0, float("nan")])
@pytest.mark.parametrize("name", ENCODERS)
def test_items_are_as_alone(name, fill, padded_share):
    encoder = encoder_of(name)
    lengths = [1234, 3000, encoder.min_samples, 2999, encoder.min_samples + 1]
    check_items(encoder, waveforms(*lengths, fill=fill), lengths)


def test_items_of_many_windows_are_as_alone(padded_share):
    encoder = encoder_of("whisper")
    window = encoder.window_samples
    lengths = [2 * window + 5, window, window + 1, 10]
    check_items(encoder, waveforms(*lengths, fill=float("inf")), lengths)


@pytest.mark.parametrize("name", ["wav2vec2-adapter", "wavlm-group", "hubert-stable", "bert-relative-key"])
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(600, 4500), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_any_lengths(name, lengths, seed):
    known = dict(length_groups._LARGEST_SHARE)
    try:
        for share in (0.0, 1.0):
            length_groups._LARGEST_SHARE["cpu"] = share
            check_items(encoder_of(name), waveforms(*lengths, seed=seed, fill=float("nan")), lengths)
    finally:
        length_groups._LARGEST_SHARE.update(known)


@pytest.mark.parametrize("name", ["wav2vec2-group", "wavlm-group", "wavlm-stable"])
def test_double_precision(name, monkeypatch):
    monkeypatch.setitem(length_groups._LARGEST_SHARE, "cpu", 1.0)
    encoder = make_encoder(name).double()
    batch = waveforms(3000, 1000).double()
    with torch.no_grad():
        together = encoder(batch, torch.tensor([3000, 1000])).last_hidden_state
        alone = encoder(batch[1:, :1000]).last_hidden_state
    assert relative_difference(together[1, : alone.size(1)], alone[0]) <= 1e-10


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 5000))
def test_lengths_are_those_of_the_computation(name, length):
    encoder = encoder_of(name)
    length = max(length, encoder.min_samples)
    out = encoder(waveforms(length))
    assert out.hidden_states[0].size(1) == int(encoder.out_lengths(torch.tensor([length])))
    assert out.last_hidden_state.size(1) == int(encoder.last_out_lengths(torch.tensor([length])))
    assert out.lengths is None and out.last_lengths is None


@pytest.mark.parametrize("name", [n for n in ENCODERS if n != "whisper"])
def test_below_the_minimum_length(name):
    encoder = encoder_of(name)
    batch = waveforms(2000, encoder.min_samples - 1)
    with pytest.raises(TooShortError, match=f"item 1 .* minimum is {encoder.min_samples}"):
        encoder(batch, torch.tensor([2000, encoder.min_samples - 1]))
    with pytest.raises(TooShortError, match="item 0"):
        encoder(batch[:, : encoder.min_samples - 1])
    assert encoder(batch[:, : encoder.min_samples]).last_hidden_state.isfinite().all()


def test_a_mask_is_as_good_as_lengths():
    encoder = encoder_of("wavlm-group")
    batch = waveforms(3000, 1000)
    mask = torch.arange(3000)[None, :] < torch.tensor([3000, 1000])[:, None]
    by_mask, by_lengths = encoder(batch, mask), encoder(batch, torch.tensor([3000, 1000]))
    assert torch.equal(by_mask.last_hidden_state, by_lengths.last_hidden_state)
    assert torch.equal(by_mask.lengths, by_lengths.lengths)
    with pytest.raises(LengthsError, match="right-padding"):
        encoder(batch, mask.flip(1))
    with pytest.raises(ValueError, match="batch, samples"):
        encoder(batch[None])


@pytest.mark.parametrize("name", ["wav2vec2-group", "wavlm-stable", "bert-rotary", "whisper"])
def test_gradients_reach_the_valid_samples_only(name, padded_share):
    encoder = encoder_of(name)
    batch = waveforms(3000, 1600, fill=float("nan")).requires_grad_()
    out = encoder(batch, torch.tensor([3000, 1600]), return_hidden_states=False)
    assert out.hidden_states is None
    out.last_hidden_state.square().sum().backward()
    assert batch.grad.isfinite().all()
    assert batch.grad[1, :1600].any() and not batch.grad[1, 1600:].any()


def test_groups_are_bounded_in_their_padding():
    lengths = [100, 95, 50, 100, 49, 10]
    assert length_groups.group_by_length(lengths, 0.0) == [[0, 3], [1], [2], [4], [5]]
    assert length_groups.group_by_length(lengths, 0.1) == [[0, 3, 1], [2, 4], [5]]
    assert length_groups.group_by_length(lengths, 1.0) == [[0, 3, 1, 2, 4, 5]]
