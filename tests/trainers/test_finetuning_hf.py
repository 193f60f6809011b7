"""Fine-tuning from a Hugging Face encoder: configurations, phases, rates by layer, two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("transformers")

from hyperion_lite.cli import finetune
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.optim import OptimizerFactory
from tests.helpers import slow_but
from tests.models.small_hf_models import GROUP_NORM, LAYER_NORM, MHFA
from tests.tpm.hf.small_encoders import save_original
from tests.trainers import voices
from tests.trainers.test_finetuning import CONFIGS, smoke_options
from tests.two_ranks import in_two_ranks

WAVLM = ("finetune_wavlm", "finetune_wavlm_lora")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    voices.write_voices(folder / "train")
    voices.write_voices(folder / "val", 3, first=100, voices=3)
    save_original("wavlm-group", folder / "wavlm")
    return folder


def small_options(folder: Path, name: str) -> list[str]:
    chosen = [f"--model.hf_feats.pretrained_model_path={folder / 'wavlm'}"]
    if name == "finetune_wavlm":
        return [*chosen, "--model.xvector.pool_net={num_heads: 2, d_k: 4, d_v: 4}", "--model.xvector.embed_dim=8"]
    widths = {"in_conv_channels": 16, "resb_channels": 16, "endpoint_channels": 16}
    return chosen + [f"--model.xvector.resnet_enc.{key}={value}" for key, value in widths.items()]


@pytest.mark.parametrize("name", WAVLM)
def test_wavlm_configurations_are_complete(folder: Path, capsys: Any, name: str) -> None:
    assert finetune.main(["--config", f"builtin:{name}", *small_options(folder, name), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    written = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert printed["trainer"]["phases"] == written["trainer"]["phases"]
    modes = find_model_class(printed["model"]["class_name"]).valid_train_modes
    assert {phase["train_mode"] for phase in written["trainer"]["phases"] if "train_mode" in phase} <= set(modes)


@pytest.mark.parametrize("name", slow_but(WAVLM, ["finetune_wavlm_lora"]))
def test_wavlm_configurations_train(folder: Path, tmp_path: Path, name: str) -> None:
    command = [*smoke_options(folder, tmp_path, name, 16000), *small_options(folder, name)]
    assert finetune.main(command) == 0
    model = HyperTorchModel.auto_load(tmp_path / "exp")
    assert model.get_config()["xvector"]["margin"] == 0.5 and model.class_names == voices.SPEAKERS
    # the run can go on where the pretrained weights are in its own checkpoints
    assert finetune.main([*command, "--trainer.num_epochs=5"]) == 0


def hf_model(**hf_feats: Any) -> Any:
    torch.manual_seed(0)
    cls = find_model_class("HFWavLM2MHFAXVector")
    return cls.from_config({"hf_feats": {**GROUP_NORM, **hf_feats}, "xvector": MHFA})


def test_rates_of_the_encoder_and_of_its_layers_go_together() -> None:
    model = hf_model(feat_extract_lr=1e-5, encoder_lr=1e-4)
    model.set_train_mode("full")
    optimizer = OptimizerFactory.create(model.trainable_param_groups(by_layer=True), lr=1e-2, layer_decay=0.5)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates.keys() == {id(p) for p in model.parameters() if p.requires_grad}
    encoder = model.hf_feats.hf_model
    expected = [
        (model.xvector, 1e-2),
        (encoder.encoder.layers[1], 1e-4 * 0.5),
        (encoder.encoder.layers[0], 1e-4 * 0.25),
        (encoder.feature_projection, 1e-4 * 0.125),
        (encoder.feature_extractor, 1e-5 * 0.125),
    ]
    for module, rate in expected:
        found = [rates[id(p)] for p in module.parameters() if p.requires_grad]
        assert found and found == pytest.approx([rate] * len(found))


@pytest.mark.parametrize("variant", [GROUP_NORM, LAYER_NORM])
def test_the_last_layers_of_an_encoder_learn(variant: dict[str, Any]) -> None:
    model = hf_model(**variant).train()
    model.train_last_layers(1)
    encoder = model.hf_feats.hf_model
    x = torch.randn(2, 8000)
    model(x, y=torch.tensor([0, 1])).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert all(p.requires_grad for p in encoder.encoder.layers[1].parameters())
    assert not any(p.requires_grad for p in encoder.encoder.layers[0].parameters())
    assert not any(p.requires_grad for p in encoder.feature_extractor.parameters())
    # a norm behind the layers learns with them
    assert encoder.encoder.layer_norm.weight.requires_grad == (variant is LAYER_NORM)
    assert encoder.encoder.layers[1].training and not encoder.encoder.layers[0].training


def in_phases(rank: int, path: Path) -> list[float]:
    from hyperion_lite.trainers.xvector_trainer import XVectorTrainer

    phases = [
        {"train_mode": "hf-feats-frozen"},
        {"start_step": 2, "last_layers": 1},
        {"start_step": 4, "train_mode": "full", "optim": {"layer_decay": 0.9}},
    ]
    optim = {"opt_type": "adamw", "lr": 1e-3}
    trainer = XVectorTrainer(
        hf_model(), optim=optim, exp_path=str(path / "exp"), num_epochs=1, device="cpu", phases=phases
    )
    generator = torch.Generator().manual_seed(rank)
    batches = [
        {"id": ["a", "b"], "audio": torch.randn(2, 6000, generator=generator), "speaker": torch.tensor([0, 1])}
        for _ in range(6)
    ]
    trainer.fit(batches)
    assert trainer.phase == 2 and trainer.global_step == 6
    return [float(p.detach().double().sum()) for p in trainer.module.parameters()]


@pytest.mark.slow
def test_two_ranks_train_in_every_phase(tmp_path: Path) -> None:
    first, second = in_two_ranks(in_phases, tmp_path)
    assert first == second
