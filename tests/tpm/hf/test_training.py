"""Training: masks within the items, a gradient for every parameter, learning rates of the parts, mixed precision."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.tpm.hf.span_masks import draw_spans
from tests.tpm.hf.small_encoders import ENCODERS, make_encoder, waveforms

NO_DROPOUT = {"hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 12), st.floats(0, 1), st.integers(0, 4))
def test_spans_lie_within_each_item(sizes, width, probability, least):
    total = max([*sizes, 1])
    mask = draw_spans(sizes, total, probability, width, least)
    for row, size in zip(mask, sizes, strict=True):
        assert not row[size:].any()
        assert not row.any() or int(row.sum()) >= width
        assert int(row.sum()) <= size
        if least and size >= width:
            assert row.any()


def test_masked_frames_are_the_embedding_and_lie_within_the_items():
    encoder = make_encoder(
        "wav2vec2-stable", mask_time_prob=0.4, mask_time_length=3, feat_proj_dropout=0.0, **NO_DROPOUT
    )
    encoder.train()
    seen = []
    encoder.hf_model.encoder.pos_conv_embed.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    torch.manual_seed(0)
    encoder(waveforms(6000, 2000), torch.tensor([6000, 2000]))
    frames = encoder.out_lengths(torch.tensor([6000, 2000])).tolist()
    masked = (seen[0] == encoder.hf_model.masked_spec_embed).all(-1)
    assert masked[0].any() and masked[1].any()
    assert not seen[0][1, frames[1] :].any()
    assert 0 < int(masked[1].sum()) < frames[1]


@pytest.mark.parametrize("name", ENCODERS)
def test_every_parameter_that_is_not_fixed_gets_a_gradient_in_every_step(name):
    encoder = make_encoder(name).train()
    fixed = {id(p) for p in encoder.fixed_parameters()}
    for seed in range(3):
        encoder.zero_grad()
        torch.manual_seed(seed)
        out = encoder(waveforms(4000, 1500, 600), torch.tensor([4000, 1500, 600]))
        (out.last_hidden_state.square().sum() + sum(h.square().sum() for h in out.hidden_states)).backward()
        for parameter_name, parameter in encoder.named_parameters():
            if id(parameter) not in fixed:
                assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name


def test_without_masks_the_embedding_is_fixed():
    assert make_encoder("wavlm-group", mask_time_prob=0.05).fixed_parameters() == []
    encoder = make_encoder("wavlm-group", apply_spec_augment=False)
    assert encoder.fixed_parameters() == [encoder.hf_model.masked_spec_embed]


def test_layers_are_never_dropped():
    encoder = make_encoder("wav2vec2-stable", layerdrop=0.9)
    assert encoder.get_config()["layerdrop"] == 0.0
    assert encoder.hf_model.config.layerdrop == 0.0


@pytest.mark.parametrize("name", ["wavlm-group", "wav2vec2-group", "hubert-stable"])
def test_projections_are_called_as_modules(name):
    encoder = make_encoder(name)
    x = waveforms(2500)

    class Shifted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.shift = nn.Parameter(torch.linspace(-0.5, 0.5, base.out_features))

        def forward(self, x):
            return self.base(x) + self.shift * x.mean(-1, keepdim=True)

    with torch.no_grad():
        plain = encoder(x).last_hidden_state
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        changed = copy.deepcopy(encoder)
        attention = changed.encoder_layers()[1].attention
        wrapper = Shifted(getattr(attention, projection))
        setattr(attention, projection, wrapper)
        out = changed(x).last_hidden_state
        assert not torch.allclose(out, plain, atol=1e-4), projection
        out.square().sum().backward()
        assert wrapper.shift.grad.abs().max() > 0, projection


def test_learning_rates_of_the_parts():
    encoder = make_encoder("wavlm-group", feat_extract_lr=1e-5, encoder_lr=2e-5, bias_weight_decay=0.0)
    front = {id(p) for p in encoder.hf_model.feature_extractor.parameters()}
    groups = encoder.trainable_param_groups()
    seen = [id(p) for group in groups for p in group["params"]]
    assert sorted(seen) == sorted(id(p) for p in encoder.parameters())
    for group in groups:
        in_front = {id(p) in front for p in group["params"]}
        assert in_front == {group["lr"] == 1e-5}
        if "weight_decay" in group:
            assert all(p.dim() <= 1 for p in group["params"])
    for parameter in encoder.hf_model.feature_extractor.parameters():
        parameter.requires_grad = False
    assert {group["lr"] for group in encoder.trainable_param_groups()} == {2e-5}
    assert [set(group) for group in make_encoder("wavlm-group").trainable_param_groups()] == [{"params"}] * 2


@pytest.mark.parametrize("name", ENCODERS)
def test_the_parts_are_all_there_is(name):
    encoder = make_encoder(name)
    parts = [
        *encoder.feature_extractor_modules(),
        *encoder.projection_modules(),
        *encoder.encoder_layers(),
        *encoder.output_modules(),
    ]
    named = {id(p) for part in parts for p in part.parameters()}
    rest = {n for n, p in encoder.named_parameters() if id(p) not in named}
    assert rest <= {"hf_model.masked_spec_embed"}
    assert len(encoder.encoder_layers()) == encoder.num_hidden_layers


@pytest.mark.parametrize("name", ["wavlm-group", "wav2vec2-stable", "bert-relative-key", "whisper"])
def test_mixed_precision(name):
    encoder = make_encoder(name)
    batch, lengths = waveforms(3000, 1600), torch.tensor([3000, 1600])
    with torch.no_grad():
        exact = encoder(batch, lengths).last_hidden_state
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = encoder(batch, lengths).last_hidden_state
        half = make_encoder(name).to(torch.bfloat16)(batch, lengths).last_hidden_state
    for other in (mixed, half):
        assert torch.nn.functional.cosine_similarity(other.float().flatten(), exact.flatten(), dim=0) > 0.99


@pytest.mark.parametrize("name", ["wavlm-group", "bert-relative-key", "whisper"])
def test_recomputed_activations_change_nothing(name):
    from hyperion_lite.trainers.gradient_checkpointing import enable_gradient_checkpointing

    grads = []
    for recompute in (False, True):
        encoder = make_encoder(name).train()
        if recompute:
            enable_gradient_checkpointing(encoder)
        torch.manual_seed(1)
        encoder(waveforms(2500, 900), torch.tensor([2500, 900])).last_hidden_state.square().sum().backward()
        grads.append({n: p.grad for n, p in encoder.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for parameter in grads[0]:
        assert torch.allclose(grads[0][parameter], grads[1][parameter], rtol=1e-4, atol=1e-6), parameter


def test_results_made_in_inference_mode_do_not_spoil_training():
    for name in ("wavlm-group", "bert-relative", "bert-rotary"):
        encoder = make_encoder(name)
        with torch.inference_mode():
            encoder(waveforms(2000))
        encoder.train()(waveforms(2000)).last_hidden_state.sum().backward()


def test_evaluation_is_repeatable_and_changes_no_state():
    encoder = make_encoder("hubert-batch-norm")
    before = copy.deepcopy(encoder.state_dict())
    x = waveforms(2000)
    assert torch.equal(encoder(x).last_hidden_state, encoder(x).last_hidden_state)
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())
