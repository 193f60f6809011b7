"""Waveform models: what they accept, what they refuse, and what voice selection, chunks and windows give."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite import Wav2ResNet1dXVector, Wav2XVector
from hyperion_lite.core.errors import ConfigError, LengthsError, TooShortError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.models.wav2xvectors.sliding import window_starts, window_times
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from tests.contracts.model_tester import relative_error
from tests.models.small_models import FEATS, WAV2XVECTORS, build, make_item, pad_items

CONVOLUTIONAL = "wav2-basic-strided"


@pytest.fixture(scope="module")
def model():
    return build("wav2-ecapa")


def waves(model, *lengths, dtype=torch.float32):
    return [make_item(model, n, i, dtype) for i, n in enumerate(lengths)]


class TestInput:
    def test_forms_of_a_batch(self, model):
        items = waves(model, 4000, 3000)
        x, lengths = pad_items(items, 7.0)
        expected = model.extract_embed(x, x_lengths=lengths)
        mask = torch.arange(x.size(1))[None] < lengths[:, None]
        for form, options in (
            (items, {}),
            (tuple(items), {}),
            (x, {"x_lengths": mask}),
            (x, {"x_lengths": lengths.int()}),
            (x[:, None], {"x_lengths": lengths}),
        ):
            assert torch.equal(model.extract_embed(form, **options), expected)

    def test_channels_by_policy(self, model):
        x = torch.randn(2, 2, 4000) * 0.1
        with pytest.raises(ValueError, match="2 channels and the model's channel_policy is 'error'"):
            model.extract_embed(x)
        for policy, mono in (("mean", x.mean(1)), (1, x[:, 1])):
            other = copy.deepcopy(model)
            other.channel_policy = policy
            assert torch.allclose(other.extract_embed(x), model.extract_embed(mono), atol=1e-5)
        other.channel_policy = 2
        with pytest.raises(ValueError, match="channel 2, but the waveforms have 2"):
            other.extract_embed(x)
        config = WAV2XVECTORS["wav2-ecapa"][1]
        assert Wav2ResNet1dXVector(**config, channel_policy="mean").get_config()["channel_policy"] == "mean"
        with pytest.raises(ConfigError, match="channel_policy"):
            Wav2ResNet1dXVector(**config, channel_policy="left")

    @pytest.mark.parametrize(
        ("x", "options", "error", "message"),
        [
            (torch.zeros(2, 4000, dtype=torch.int16), {}, ValueError, "32768"),
            (torch.zeros(4000), {}, ValueError, r"x\[None\]"),
            (torch.zeros(1, 1, 1, 4000), {}, ValueError, "must have shape"),
            (torch.zeros(0, 4000), {}, ValueError, "empty batch"),
            (torch.zeros(2, 0), {}, ValueError, "empty batch"),
            ([], {}, ValueError, "empty list"),
            ([torch.zeros(4000), torch.zeros(2, 3)], {}, ValueError, "item 1 of the list"),
            ([torch.zeros(4000)], {"x_lengths": torch.tensor([4000])}, LengthsError, "has its lengths already"),
            (torch.zeros(2, 4000), {"x_lengths": torch.tensor([4001, 4000])}, LengthsError, r"x_lengths\[0\] = 4001"),
            (torch.zeros(2, 4000), {"x_lengths": torch.tensor([4000, 0])}, LengthsError, r"x_lengths\[1\] = 0"),
            (torch.zeros(2, 4000), {"x_lengths": torch.tensor([1.0, 0.5])}, LengthsError, "relative lengths"),
            (torch.zeros(2, 4000), {"x_lengths": torch.tensor([4000])}, LengthsError, r"shape \(2,\)"),
            (torch.zeros(2, 4000), {"x_lengths": torch.tensor([4000, 90])}, TooShortError, "item 1 .* 90 samples"),
            (torch.zeros(2, 90), {}, TooShortError, "item 0 .* the minimum is"),
            (torch.zeros(2, 4000), {"x_lengths": (torch.arange(4000) % 2 == 0).expand(2, -1)}, LengthsError, "vad_samples"),
            (torch.zeros(2, 4000), {"x_lengths": torch.ones(2, dtype=torch.int64, device="meta")}, RuntimeError, "same device"),
            (torch.zeros(2, 4000), {"vad_samples": torch.ones(2, 25, dtype=torch.bool)}, ValueError, "vad_samples must have shape"),
            (torch.zeros(2, 4000), {"vad_feats": torch.ones(2, 4000, dtype=torch.bool)}, ValueError, "vad_feats must have shape"),
            (torch.zeros(2, 4000), {"vad_samples": torch.full((2, 4000), 0.5)}, ValueError, "other than 0 and 1"),
        ],
    )  # fmt: skip
    def test_what_is_described_wrongly_is_refused(self, model, x, options, error, message):
        with pytest.raises(error, match=message):
            model.extract_embed(x, **options)
        with pytest.raises(error, match=message):
            model(x, **options)

    def test_the_shortest_item_is_accepted_and_no_shorter_one(self, model):
        least = model.min_samples
        assert torch.isfinite(model.extract_embed(make_item(model, least)[None])).all()
        with pytest.raises(TooShortError, match=f"{least - 1} samples.*the minimum is {least}"):
            model.extract_embed(make_item(model, least - 1)[None])

    def test_silence_is_finite_and_named(self, model, caplog):
        x = torch.stack([make_item(model, 4000), torch.zeros(4000)])
        assert torch.isfinite(model.extract_embed(x)).all()
        assert "items [1] of the batch are silent" in caplog.text

    def test_a_half_precision_network_takes_single_precision_waves(self, model):
        half = copy.deepcopy(model).to(torch.bfloat16)
        embedding = half.extract_embed(make_item(model, 4000)[None])
        assert embedding.dtype == torch.bfloat16 and torch.isfinite(embedding).all()


class TestVoiceSelection:
    @settings(max_examples=15)
    @given(st.lists(st.integers(1500, 6000), min_size=2, max_size=3), st.integers(0, 5), st.booleans())
    def test_selected_samples_are_the_utterance(self, lengths, seed, nan):
        model = build("wav2-ecapa")
        items = waves(model, *lengths)
        x, x_lengths = pad_items(items, float("nan") if nan else 5.0)
        generator = torch.Generator().manual_seed(seed)
        vad = torch.rand(x.shape, generator=generator) < 0.7
        embeds = model.extract_embed(x, x_lengths=x_lengths, vad_samples=vad)
        for i, item in enumerate(items):
            alone = model.extract_embed(item[vad[i, : len(item)]][None])
            assert relative_error(embeds[i], alone[0]) <= 1e-5

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_selected_frames_are_the_features(self, model, dtype):
        items = waves(model, 4000, 3000)
        x, lengths = pad_items(items, 0.0)
        feats, feat_lengths = model.feats(x, lengths)
        vad = torch.rand(feats.size(0), feats.size(-1)) < 0.6
        embeds = model.extract_embed(x, x_lengths=lengths, vad_feats=vad.to(dtype))
        for i in range(2):
            kept = feats[i, :, : feat_lengths[i]][:, vad[i, : feat_lengths[i]]]
            assert relative_error(embeds[i], model.xvector.extract_embed(kept[None])[0]) <= 1e-5

    @pytest.mark.parametrize("name", ["vad_samples", "vad_feats"])
    def test_an_item_without_voice_is_used_whole_and_named(self, model, name, caplog):
        x = torch.stack(waves(model, 4000, 4000))
        size = 4000 if name == "vad_samples" else model.feats(x)[0].size(-1)
        vad = torch.ones(2, size, dtype=torch.bool)
        vad[1] = False
        embeds = model.extract_embed(x, **{name: vad})
        assert f"{name} keeps fewer than" in caplog.text and "[1]" in caplog.text
        assert relative_error(embeds, model.extract_embed(x)) <= 1e-6

    def test_gradients_pass_through_the_selection(self, model):
        x = make_item(model, 4000)[None].requires_grad_()
        vad = torch.ones(1, 4000, dtype=torch.bool)
        vad[:, 1000:2000] = False
        model.extract_embed(x, vad_samples=vad).sum().backward()
        assert (x.grad[0, :1000] != 0).any() and (x.grad[0, 1000:2000] == 0).all()


class TestChunks:
    @settings(max_examples=10)
    @given(st.lists(st.integers(6000, 30000), min_size=1, max_size=3), st.sampled_from([0.47, 0.6, 0.8]))
    def test_a_convolutional_encoder_gives_the_same_embedding(self, lengths, chunk_length):
        model = build(CONVOLUTIONAL)
        x, x_lengths = pad_items(waves(model, *lengths), float("nan"))
        with torch.no_grad():
            whole = model.extract_embed(x, x_lengths=x_lengths)
            chunked = model.extract_embed(x, x_lengths=x_lengths, chunk_length=chunk_length)
        for i in range(len(lengths)):
            assert relative_error(chunked[i], whole[i]) <= 1e-4

    def test_a_chunk_longer_than_the_item_is_no_chunking(self, model):
        x = make_item(model, 8000)[None]
        assert torch.equal(model.extract_embed(x, chunk_length=0.5), model.extract_embed(x))

    def test_gradients_flow_unless_chunks_are_detached(self):
        model = build(CONVOLUTIONAL)
        for detach in (False, True):
            x = make_item(model, 12000)[None].requires_grad_()
            embeds = model.extract_embed(x, chunk_length=0.5, detach_chunks=detach)
            if embeds.requires_grad:
                embeds.sum().backward()
            grad = x.grad
            assert (grad is None or not grad.any()) if detach else bool(grad.any())
            assert all(p.grad is None for p in model.xvector.encoder_net.parameters()) or not detach
            model.zero_grad(set_to_none=True)

    def test_chunks_without_room_for_the_context_are_refused(self):
        model = build(CONVOLUTIONAL)
        x = make_item(model, 12000)[None]
        with pytest.raises(ValueError, match="chunk"):
            model.extract_embed(x, chunk_length=0.02)
        with pytest.raises(ValueError, match="positive number of seconds"):
            model.extract_embed(x, chunk_length=-1)


class TestSlidingWindows:
    def test_windows_are_utterances(self, model):
        items = waves(model, 9000, 5000, 1200)
        x, lengths = pad_items(items, float("nan"))
        found = model.extract_embed_slidwin(x, lengths, win_length=0.125, win_shift=0.0625, batch_size=3)
        assert found.num_windows.tolist() == [8, 4, 1]
        assert found.embeddings.shape == (3, 8, model.embed_dim) and found.times.shape == (3, 8, 2)
        for i, item in enumerate(items):
            for j in range(int(found.num_windows[i])):
                window = item[j * 1000 : j * 1000 + 2000]
                assert relative_error(found.embeddings[i, j], model.extract_embed(window[None])[0]) <= 1e-5
        assert (found.embeddings[1, 4:] == 0).all()

    @given(st.integers(1, 50_000), st.integers(1, 20_000), st.integers(1, 20_000))
    def test_times_cover_the_item_in_order(self, length, window, shift):
        starts, times = window_starts(length, window, shift), window_times(length, window, shift, 16000)
        assert len(starts) == len(times) == max(1, (length - window + shift) // shift)
        assert times[0][0] == 0.0 and math.isclose(times[-1][1], length / 16000)
        assert all(math.isclose(a[1], b[0]) for a, b in itertools.pairwise(times[1:-1]))
        assert all(s + window <= length for s in starts) or len(starts) == 1

    @pytest.mark.parametrize("options", [{"win_length": 0.001}, {"win_shift": 0.0}, {"batch_size": 0}])
    def test_impossible_windows_are_refused(self, model, options):
        with pytest.raises(ValueError, match=r"win_|batch_size"):
            model.extract_embed_slidwin(make_item(model, 9000)[None], **options)


class TestHeadAndModes:
    def test_structured_output(self, model):
        output = model(make_item(model, 4000)[None], enc_layers=[1], classif_layers=[0], return_output=True)
        assert output.logits.shape == (1, model.num_classes)
        assert len(output.h_enc) == 1 and len(output.h_classif) == 1
        alone = model(make_item(model, 4000)[None], enc_layers=[1], return_output=False)
        assert alone.logits is None and alone.h_classif is None

    def test_new_classes_keep_the_rows_of_known_ones(self):
        model = build("wav2-ecapa")
        old = [f"s{i}" for i in range(model.num_classes)]
        model.class_names = old
        kernel = model.xvector.classif_net.output.kernel.detach().clone()
        report = model.rebuild_output_layer(class_names=["new", "s3", "s0"])
        after = model.xvector.classif_net.output.kernel
        assert model.num_classes == 3 and model.class_names == ["new", "s3", "s0"]
        assert torch.equal(after[:, 1], kernel[:, 3]) and torch.equal(after[:, 2], kernel[:, 0])
        assert "new" in str(report)
        assert model.get_config()["xvector"]["num_classes"] == 3

    def test_margin_follows_the_epoch(self):
        model = build("wav2-ecapa").train()
        x, y = torch.stack(waves(model, 4000, 4000)), torch.tensor([0, 1])
        model.eval()
        assert torch.equal(model(x, y=y), model(x))
        model.train()
        model.update_loss_margin(0)
        assert model(x, y=y).shape == (2, model.num_classes)

    def test_prototype_affinity_and_cancelled_gradients(self):
        model = build("wav2-ecapa").train()
        affinity = model.compute_prototype_affinity()
        assert affinity.shape == (model.num_classes,) * 2
        assert torch.allclose(affinity.diagonal(), torch.ones(model.num_classes), atol=1e-5)
        model(torch.stack(waves(model, 4000, 4000)), y=torch.tensor([0, 1])).sum().backward()
        model.cancel_output_layer_grads()
        output = model.xvector.classif_net.output
        assert all(p.grad is None or not p.grad.any() for p in output.parameters())

    def test_modes(self, model):
        assert model.valid_train_modes() == ["full", "full-feats-grad", "frozen", "ft-embed-affine"]
        other = copy.deepcopy(model)
        with pytest.raises(ValueError, match="no train mode 'half'; it has: full"):
            other.set_train_mode("half")
        other.train_mode = "ft-embed-affine"
        other.train()
        assert not other.xvector.encoder_net.training and other.xvector.classif_net.training
        assert other.freeze().is_frozen and not other.training
        assert not list(other.trainable_parameters())
        other.unfreeze().train()
        assert other.xvector.encoder_net.training and not list(other.non_trainable_parameters())

    def test_a_frozen_part_stays_frozen_under_its_parent(self, model):
        other = copy.deepcopy(model)
        other.xvector.encoder_net.freeze()
        other.train()
        assert not other.xvector.encoder_net.training
        assert all(not p.requires_grad for p in other.xvector.encoder_net.parameters())

    def test_parameter_groups_and_summary(self):
        config = WAV2XVECTORS["wav2-ecapa"][1]
        model = Wav2ResNet1dXVector(config["feats"], {**config["xvector"], "bias_weight_decay": 0.0})
        decayed, biases = model.trainable_param_groups()
        assert biases["weight_decay"] == 0.0 and all(p.dim() <= 1 for p in biases["params"])
        assert all(p.dim() > 1 for p in decayed["params"])
        assert len(decayed["params"]) + len(biases["params"]) == len(list(model.parameters()))
        summary = model.parameter_summary(verbose=True)
        assert summary.trainable == sum(p.numel() for p in model.parameters())
        model.freeze()
        assert model.parameter_summary().trainable == 0 and model.parameter_summary().total == summary.total

    def test_dropout_rates_change_and_are_recorded(self):
        model = build("wav2-res2basic-dropout")
        model.change_dropouts(0.4)
        rates = {m.p for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)}
        assert rates == {0.4}
        assert model.get_config()["xvector"]["resnet_enc"]["dropout_rate"] == 0.4
        with pytest.raises(ValueError, match=r"\[0, 1\)"):
            model.change_dropouts(1.0)


class TestConfiguration:
    def test_the_command_line_has_every_nested_option(self):
        parser = ArgumentParser(exit_on_error=False)
        Wav2ResNet1dXVector.add_class_args(parser, "model")
        names = parser.option_names()
        for name in (
            "model.feats.audio_feats.num_filters",
            "model.xvector.resnet_enc.resb_type",
            "model.xvector.margin",
        ):
            assert name in names

    def test_fine_tuning_options(self):
        parser = ArgumentParser(exit_on_error=False)
        Wav2ResNet1dXVector.add_finetune_args(parser, "model")
        args = parser.parse_args(["--model.xvector.margin", "0.5"])
        kept = Wav2ResNet1dXVector.filter_finetune_args(**args.model.as_dict(), lr=0.1)
        assert kept["xvector"]["margin"] == 0.5 and "lr" not in kept
        model = build("wav2-ecapa")
        model.change_config(**kept)
        assert model.get_config()["xvector"]["margin"] == 0.5

    def test_a_missing_kind_of_x_vector_is_named(self):
        with pytest.raises(ConfigError, match="class_name"):
            Wav2XVector(FEATS, {"num_classes": 3})
        with pytest.raises(KeyError, match="unknown model class"):
            Wav2XVector(FEATS, {"class_name": "ResNet3dXVector"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_filters": 30}, "feats gives 30 features per frame, but the encoder has in_feats = 24"),
        ({"audio_feat": "fft"}, "fft is complex"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(change, message):
    config = copy.deepcopy(WAV2XVECTORS["wav2-ecapa"][1])
    config["feats"]["audio_feats"].update(change)
    config["feats"]["mvn"] = None
    with pytest.raises(ConfigError, match=message):
        Wav2ResNet1dXVector(**config)


def test_a_front_end_in_the_other_layout_is_refused(model):
    with pytest.raises(ConfigError, match="trans: true"):
        Wav2ResNet1dXVector(AudioFeatsMVN(FEATS["audio_feats"]), model.xvector)


def test_there_is_one_class_table(tmp_path):
    model = build("wav2-ecapa")
    model.class_names = list("abcdefg")
    report = model.xvector.rebuild_output_layer(class_names=["c", "z"])
    assert (report.kept, report.new) == (("c",), ("z",))
    model.save(tmp_path / "m")
    assert Wav2XVector.auto_load(tmp_path / "m").class_names == model.class_names == ["c", "z"]
