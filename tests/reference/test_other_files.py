"""What else a file may hold by the specification, and must not keep a model from loading."""

from __future__ import annotations

import argparse
import enum
import pathlib
import sys
import types
from collections import OrderedDict

import jsonargparse
import numpy as np
import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.serialization.locate import read_model
from tests.reference.comparing import agree, save, tensors_for

HEAD = {
    "num_classes": 5,
    "embed_dim": 16,
    "hid_act": "relu",
    "pool_net": {"pool_type": "mean+stddev"},
    "cos_scale": 30.0,
}
ENCODER = {
    "in_feats": 20,
    "in_conv_channels": 16,
    "resb_channels": [16],
    "resb_repeats": [1, 1],
    "resb_strides": [1, 2],
}
AUDIO = {
    "audio_feat": "logfb",
    "num_filters": 20,
    "use_energy": False,
    "dither": 0.0,
    "high_freq": 7600,
    "snip_edges": False,
}
FEATS = {
    "audio_feats": AUDIO,
    "mvn": {"norm_mean": True, "left_context": 5, "right_context": 5},
    "spec_augment": None,
    "trans": True,
}
ON_FEATURES = {"class_name": "ResNet1dXVector", "resnet_enc": ENCODER, **HEAD}
ON_WAVES = {"class_name": "Wav2ResNet1dXVector", "feats": FEATS, "xvector": ON_FEATURES}


def wave(seed: int = 0, samples: int = 6000) -> torch.Tensor:
    return 0.1 * torch.randn(1, samples, generator=torch.Generator().manual_seed(seed))


def features(seed: int = 0, count: int = 20) -> torch.Tensor:
    return torch.randn(1, count, 40, generator=torch.Generator().manual_seed(seed))


def loads(path, config, tensors, x, rules="legacy", **options):
    model = HyperTorchModel.auto_load(path, **options)
    agree(model, config, tensors, x, rules)
    return model


class TestObjectsInTheConfiguration:
    @pytest.fixture
    def toolkit_enum(self, monkeypatch):
        """The toolkit's enum as it lies in files, at its module path."""
        path = "hyperion.torch.models.xvectors.xvector"
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        kind = enum.Enum("XVectorHeadType", {"XVECTOR": "x-vector", "DINO": "dino"}, type=str, module=path)
        monkeypatch.setattr(sys.modules[path], "XVectorHeadType", kind, raising=False)
        return kind

    @pytest.mark.parametrize("head", ["x-vector", "dino"])
    def test_enums_of_the_toolkit(self, tmp_path, toolkit_enum, head):
        plain = {**ON_FEATURES, "head_type": head, "head_hid_dim": 24, "head_bottleneck_dim": 8, "num_embed_layers": 2}
        plain["loss_type"] = "softmax"
        tensors = tensors_for(plain, features(), 1)
        path = save(tmp_path / "m.pth", {**plain, "head_type": toolkit_enum(head)}, tensors.table)
        loads(path, plain, tensors, features())

    @pytest.mark.parametrize("kind", [argparse.Namespace, jsonargparse.Namespace, OrderedDict])
    def test_namespaces_and_ordered_dicts(self, tmp_path, kind):
        config = {**ON_WAVES, "feats": kind(**{**FEATS, "audio_feats": kind(**AUDIO)}), "xvector": kind(**ON_FEATURES)}
        tensors = tensors_for(ON_WAVES, wave(), 2)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_WAVES, tensors, wave())

    def test_a_namespace_from_an_early_jsonargparse(self, tmp_path, monkeypatch):
        module = types.ModuleType("jsonargparse.namespace")
        module.Namespace = type("Namespace", (argparse.Namespace,), {"__module__": module.__name__})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        config = {**ON_WAVES, "feats": module.Namespace(**FEATS)}
        tensors = tensors_for(ON_WAVES, wave(), 2)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_WAVES, tensors, wave())

    def test_a_namespace_around_everything(self, tmp_path):
        tensors = tensors_for(ON_FEATURES, features(), 2)
        path = save(tmp_path / "m.pth", argparse.Namespace(**ON_FEATURES), tensors.table)
        loads(path, ON_FEATURES, tensors, features())

    def test_paths_and_numpy_numbers(self, tmp_path):
        config = {
            **ON_FEATURES,
            "embed_dim": np.int64(16),
            "cos_scale": np.float32(30.0),
            "norm_before": np.bool_(True),
        }
        config |= {"data": pathlib.Path("/data/x"), "resnet_enc": {**ENCODER, "resb_channels": np.int64(16)}}
        tensors = tensors_for(ON_FEATURES, features(), 2)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_FEATURES, tensors, features())

    def test_ints_for_floats_and_floats_where_the_front_end_takes_them(self, tmp_path):
        audio = {
            **AUDIO,
            "low_freq": 20.0,
            "high_freq": 7600.0,
            "energy_floor": 0.0,
            "blackman_coeff": 0.42,
            "cepstral_lifter": 22.0,
        }
        audio |= {"frame_length": 25.0, "frame_shift": 10.0, "dither": 0, "preemphasis_coeff": 1}
        encoder = {**ENCODER, "dropout_rate": 0, "drop_connect_rate": 0, "res2net_width_factor": 1.0}
        xvector = {
            **ON_FEATURES,
            "resnet_enc": encoder,
            "cos_scale": 30,
            "margin_warmup_epochs": 5,
            "intertop_margin": 0,
            "margin": 0,
        }
        config = {**ON_WAVES, "feats": {**FEATS, "audio_feats": audio}, "xvector": xvector}
        tensors = tensors_for(config, wave(), 3)
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, wave())

    def test_a_tuple_in_the_place_of_every_list(self, tmp_path):
        flat = {
            "class_name": "ResNetXVector",
            "resnet_type": "resnet18",
            "in_channels": 1,
            "in_feats": 16,
            "base_channels": 4,
        }
        flat |= {"conv_channels": 4, "replace_stride_with_dilation": [False, True, False], **HEAD}
        tensors = tensors_for(flat, features(count=16), 3)
        path = save(tmp_path / "m.pth", {**flat, "replace_stride_with_dilation": (False, True, False)}, tensors.table)
        loads(path, flat, tensors, features(count=16))


class TestTrainerFiles:
    def more(self, tensors):
        state = {
            "state": {0: {"step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 0.1, "initial_lr": 0.1, "swa_lr": 0.1, "params": [0]}],
        }
        return {
            "epoch": 3,
            "batch": 2,
            "global_step": 9,
            "rng_state": torch.get_rng_state(),
            "optimizer_state_dict": state,
            "loss_state_dict": OrderedDict(),
            "lr_scheduler_state_dict": {"min_lrs": [0.0], "base_lrs": [0.1], "step": 9, "update_lr_on_opt_step": False},
            "logs": OrderedDict(loss=np.float64(1.5), acc=np.float32(0.5), other=torch.tensor(2.0)),
        }

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_full_checkpoint_in_both_containers(self, tmp_path, zipped):
        tensors = tensors_for(ON_WAVES, wave(), 4)
        content = {"model_cfg": ON_WAVES, "model_state_dict": tensors.table, **self.more(tensors)}
        torch.save(content, tmp_path / "m.pth", _use_new_zipfile_serialization=zipped)
        loads(tmp_path / "m.pth", ON_WAVES, tensors, wave())

    def test_epoch_steps_and_metrics_are_offered(self, tmp_path):
        tensors = tensors_for(ON_FEATURES, features(), 4)
        more = self.more(tensors)
        path = save(tmp_path / "m.pth", ON_FEATURES, tensors.table, **more)
        progress = read_model(path).progress
        assert progress == {"epoch": 3, "batch": 2, "global_step": 9, "logs": {"loss": 1.5, "acc": 0.5, "other": 2.0}}
        more["step"] = more.pop("global_step")
        path = save(tmp_path / "n.pth", ON_FEATURES, tensors.table, **more)
        assert read_model(path).progress["global_step"] == 9

    def test_averaged_weights_behind_two_prefixes(self, tmp_path):
        tensors, averaged = (tensors_for(ON_WAVES, wave(), seed) for seed in (5, 6))
        state = OrderedDict(n_averaged=torch.tensor(4)) | {f"module.module.{k}": v for k, v in averaged.table.items()}
        model = {f"module.{k}": v for k, v in tensors.table.items()}
        path = save(tmp_path / "m.pth", ON_WAVES, model, swa_model_state_dict=state, **self.more(tensors))
        loads(path, ON_WAVES, tensors, wave())
        loads(path, ON_WAVES, averaged, wave(), model_name="swa_model")

    def test_a_dino_teacher(self, tmp_path):
        config = {
            **ON_FEATURES,
            "head_type": "dino",
            "head_hid_dim": 24,
            "head_bottleneck_dim": 8,
            "num_embed_layers": 3,
        }
        config["loss_type"] = "softmax"
        tensors = tensors_for(config, features(), 7)
        path = save(
            tmp_path / "teacher_model_ep0001.pth", config, tensors.table, optimizer_state_dict={"global_step": 7}
        )
        loads(path, config, tensors, features())

    def test_views_into_one_storage(self, tmp_path):
        tensors = tensors_for(ON_FEATURES, features(), 8)
        storage, state, start = (
            torch.cat([v.reshape(-1) for v in tensors.table.values() if v.is_floating_point()]),
            {},
            0,
        )
        for name, value in tensors.table.items():
            if value.is_floating_point():
                state[name] = storage[start : start + value.numel()].view(value.shape)
                start += value.numel()
        matrix = "classif_net.fc_blocks.0.linear.weight"
        state[matrix] = state[matrix].T.contiguous().T
        loads(save(tmp_path / "m.pth", ON_FEATURES, state), ON_FEATURES, tensors, features())


class TestFrontEndTables:
    @pytest.mark.parametrize("rules", ["legacy", "modern"])
    @pytest.mark.parametrize("feat", ["logfb", "mfcc", "spec"])
    def test_missing_tables_are_computed(self, tmp_path, feat, rules):
        audio = {**AUDIO, "audio_feat": feat}
        count = {"logfb": 20, "mfcc": 13, "spec": 257}[feat]
        config = {
            **ON_WAVES,
            "feats": {**FEATS, "audio_feats": audio},
            "xvector": {**ON_FEATURES, "resnet_enc": {**ENCODER, "in_feats": count}},
        }
        tensors = tensors_for(config, wave(), 9, rules)
        state = {k: v for k, v in tensors.table.items() if not k.startswith("feats.")}
        loads(save(tmp_path / "m.pth", config, state), config, tensors, wave(), rules, frontend_rules=rules)

    def test_stored_tables_win(self, tmp_path):
        tensors = tensors_for(ON_WAVES, wave(), 9)
        for name in ("feats.audio_feats._fb", "feats.audio_feats.wav2win._window"):
            tensors.table[name] = tensors.table[name] * torch.linspace(0.5, 2, len(tensors.table[name])).reshape(
                -1, *[1] * (tensors.table[name].dim() - 1)
            )
        loads(save(tmp_path / "m.pth", ON_WAVES, tensors.table), ON_WAVES, tensors, wave(), frontend_rules="legacy")

    @pytest.mark.parametrize("rules", ["legacy", "modern"])
    def test_the_filter_bank_tells_the_release(self, tmp_path, rules):
        tensors = tensors_for(ON_WAVES, wave(), 10, rules)
        loads(save(tmp_path / "m.pth", ON_WAVES, tensors.table), ON_WAVES, tensors, wave(), rules)

    def test_a_single_file_with_another_bank_is_legacy(self, tmp_path):
        config = {**ON_WAVES, "feats": {**FEATS, "audio_feats": {**AUDIO, "fb_type": "mel_librosa"}}}
        tensors = tensors_for(config, wave(), 10)
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, wave())


class TestOldFiles:
    def test_a_head_from_before_most_keys(self, tmp_path):
        config = {"class_name": "ResNet1dXVector", "resnet_enc": ENCODER, "in_feats": 20, "num_classes": 5, "s": 30}
        config |= {
            "embed_dim": 16,
            "pool_net": "mean+stddev",
            "hid_act": {"name": "relu6", "inplace": True},
            "wo_norm": False,
            "norm_after": True,
        }
        tensors = tensors_for(config, features(), 11)
        state = {k: v for k, v in tensors.table.items() if not k.endswith("num_batches_tracked")}
        loads(save(tmp_path / "m.pth", config, state), config, tensors, features())

    def test_sub_centres_without_counts(self, tmp_path):
        config = {**ON_FEATURES, "loss_type": "subcenter-arc-softmax"}
        tensors = tensors_for(config, features(), 12)
        state = {k: v for k, v in tensors.table.items() if not k.endswith("subcenter_counts")}
        loads(save(tmp_path / "m.pth", config, state), config, tensors, features())

    def test_projections_that_a_strided_block_does_not_use(self, tmp_path):
        config = {
            **ON_FEATURES,
            "resnet_enc": {**ENCODER, "resb_type": "res2basic", "resb_channels": [16, 32], "in_conv_channels": 16},
        }
        tensors = tensors_for(config, features(), 13)
        unused = {k for k in tensors.table if "blocks.1.0.proj1s" in k}
        assert unused
        state = {k: v for k, v in tensors.table.items() if k not in unused}
        loads(save(tmp_path / "m.pth", config, state), config, tensors, features())
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, features())

    def test_time_squeeze_excitation(self, tmp_path):
        config = {
            "class_name": "ResNetXVector",
            "resnet_type": "tseresnet18",
            "in_channels": 1,
            "in_feats": 16,
            "base_channels": 4,
        }
        config |= {"conv_channels": 4, "se_r": 8, **HEAD}
        tensors = tensors_for(config, features(count=16), 14)
        old = {**config, "resnet_type": "seresnet18", "time_se": True, "no_maxpool": True}
        loads(save(tmp_path / "m.pth", old, tensors.table), config, tensors, features(count=16))

    def test_the_bare_x_vector(self, tmp_path):
        encoder = {"class_name": "ResNet1dEncoder", **ENCODER}
        config = {"class_name": "XVector", "encoder_cfg": encoder, **HEAD}
        tensors = tensors_for(ON_FEATURES, features(), 15)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_FEATURES, tensors, features())

    def test_keys_that_nobody_knows(self, tmp_path):
        config = {**ON_FEATURES, "some_later_key": {"a": [1]}, "resnet_enc": {**ENCODER, "another": 3}}
        config["pool_net"] = {**HEAD["pool_net"], "in_feats": 999, "odd": 1}
        tensors = tensors_for(ON_FEATURES, features(), 16)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_FEATURES, tensors, features())


class TestSurplusAndMissingParts:
    def test_class_names_inside_are_ignored(self, tmp_path):
        xvector = {
            **ON_FEATURES,
            "class_name": "ResNet1dXVector",
            "pool_net": {**HEAD["pool_net"], "class_name": "Pool"},
        }
        xvector["resnet_enc"] = {**ENCODER, "class_name": "ResNet1dEncoder"}
        feats = {**FEATS, "class_name": "AudioFeatsMVN", "audio_feats": {**AUDIO, "class_name": "Wav2LogFilterBank"}}
        config = {"class_name": "Wav2ResNet1dXVector", "feats": feats, "xvector": xvector}
        tensors = tensors_for(ON_WAVES, wave(), 17)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_WAVES, tensors, wave())

    def test_no_class_names_inside(self, tmp_path):
        xvector = {key: value for key, value in ON_FEATURES.items() if key != "class_name"}
        config = {**ON_WAVES, "xvector": xvector}
        tensors = tensors_for(ON_WAVES, wave(), 17)
        loads(save(tmp_path / "m.pth", config, tensors.table), ON_WAVES, tensors, wave())

    @pytest.mark.parametrize("trans", [False, None])
    def test_waveform_models_always_transpose(self, tmp_path, trans):
        feats = {"audio_feats": AUDIO, "mvn": FEATS["mvn"]} | ({} if trans is None else {"trans": trans})
        tensors = tensors_for(ON_WAVES, wave(), 18)
        path = save(tmp_path / "m.pth", {**ON_WAVES, "feats": feats}, tensors.table)
        loads(path, ON_WAVES, tensors, wave())

    @pytest.mark.parametrize(
        "mvn", [{"context": 10}, {"context": None, "norm_mean": True}, {"norm_var": True, "no_norm_mean": True}, {}]
    )
    def test_spellings_of_the_normalisation(self, tmp_path, mvn):
        config = {**ON_WAVES, "feats": {**FEATS, "mvn": mvn}}
        tensors = tensors_for(config, wave(), 19)
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, wave())

    def test_null_for_a_number_is_the_default(self, tmp_path):
        audio = {**AUDIO, "fft_length": None, "window_type": None, "cepstral_lifter": None}
        mvn = {"norm_mean": True, "left_context": None, "right_context": None}
        xvector = {
            **ON_FEATURES,
            "resnet_enc": {**ENCODER, "se_r": None, "dropout_rate": None},
            "dropout_rate": None,
            "proj_feats": None,
        }
        config = {**ON_WAVES, "feats": {**FEATS, "audio_feats": audio, "mvn": mvn}, "xvector": xvector}
        plain = {**ON_WAVES, "feats": {**FEATS, "mvn": {"norm_mean": True}}}
        tensors = tensors_for(plain, wave(), 19)
        loads(save(tmp_path / "m.pth", config, tensors.table), plain, tensors, wave())

    @pytest.mark.parametrize("head", ["ResNet1dXVector", "ResNetXVector"])
    def test_only_the_keys_without_defaults(self, tmp_path, head):
        config = {"class_name": head, "num_classes": 3}
        flat = {"resnet_type": "resnet18", "in_channels": 1, "in_feats": 20}
        config |= flat if head == "ResNetXVector" else {"resnet_enc": {"in_feats": 20}}
        tensors = tensors_for(config, features(), 20)
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, features())

    @pytest.mark.parametrize(
        "name", [{"name": "threshold", "threshold": 0.1, "value": -0.2}, {"name": "hardtanh", "max_val": 2.0}, None]
    )
    def test_activations_with_arguments_and_none(self, tmp_path, name):
        config = {**ON_FEATURES, "hid_act": name, "loss_type": "softmax", "resnet_enc": {**ENCODER, "hid_act": name}}
        tensors = tensors_for(config, features(), 21)
        loads(save(tmp_path / "m.pth", config, tensors.table), config, tensors, features())
