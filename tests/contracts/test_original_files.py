"""Files of the original toolkit load through our reader and give its features, stages, embeddings and logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.helpers import have_shared, shared_folder, shared_path

NATIVE = [
    "dino_head",
    "ecapa",
    "enum_head_type",
    "fwseresnet34_chatt",
    "mfcc_resnet1d",
    "old_s_resnet1d",
    "resnet1d_basic_stride2",
    "resnet1d_sebasic",
    "resnet34",
    "subcenter_2embed",
    "trainer_ddp_ep0003",
    "trainer_ep0001",
    "trainer_ep0001_step0000000004",
    "trainer_swa_final",
]
TOLERANCE = 1e-5


def close(found: torch.Tensor, expected: np.ndarray) -> None:
    reference = torch.from_numpy(expected)
    assert found.shape == reference.shape
    error = (found - reference).abs().max().item() / max(1.0, reference.abs().max().item())
    assert error <= TOLERANCE, error


def load_pair(name: str) -> tuple[HyperTorchModel, dict[str, np.ndarray]]:
    model = HyperTorchModel.auto_load(shared_path(f"fixtures/hyperion/{name}.pth"))
    return model, dict(np.load(shared_path(f"fixtures/hyperion/{name}.npz")))


def embedding_input(model: HyperTorchModel, arrays: dict[str, np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(arrays["x" if hasattr(model, "feats") else "x_feats"])


@pytest.mark.parametrize("name", NATIVE)
class TestNativeFiles:
    def test_embedding_and_logits(self, name):
        model, arrays = load_pair(name)
        x = embedding_input(model, arrays)
        with torch.no_grad():
            close(model.extract_embed(x), arrays["embed"])
            close(model(x), arrays["logits"])

    def test_stages(self, name):
        model, arrays = load_pair(name)
        found = stages(model, arrays)
        compared = [key for key in arrays if key in found]
        for key in compared:
            close(found[key], arrays[key])
        unknown = set(arrays) - set(compared) - {"x", "x_feats", "embed", "logits", "embed_swa", "logits_swa"}
        assert not unknown, f"stages that nothing compares: {unknown}"

    def test_saved_again_it_keeps_the_keys_of_the_original(self, name, tmp_path):
        path = shared_path(f"fixtures/hyperion/{name}.pth")
        model, arrays = load_pair(name)
        model.save(tmp_path / "again.pth")
        content = torch.load(tmp_path / "again.pth", weights_only=True)
        original = json.loads(path.with_suffix(".json").read_text())
        assert set(original["config"]) - {"s"} <= set(content["model_cfg"])
        names = original.get("state_dict")
        if names is not None:
            assert set(names) == set(content["model_state_dict"])
        with torch.no_grad():
            close(
                HyperTorchModel.auto_load(tmp_path / "again.pth").extract_embed(embedding_input(model, arrays)),
                arrays["embed"],
            )


@torch.no_grad()
def stages(model: HyperTorchModel, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Every intermediate result under the name that the stored arrays have."""
    found: dict[str, torch.Tensor] = {}
    xvector = model
    if hasattr(model, "feats"):
        x = torch.from_numpy(arrays["x"])
        xvector = model.xvector
        found["feats_raw"] = model.feats.audio_feats(x).transpose(1, 2)
        found["feats"] = model.feats(x)[0]
    handles = watch(xvector, found)
    xvector.extract_embed(found["feats"] if "feats" in found else torch.from_numpy(arrays["x_feats"]))
    for handle in handles:
        handle.remove()
    return found


def watch(xvector: HyperTorchModel, found: dict[str, torch.Tensor]) -> list[torch.utils.hooks.RemovableHandle]:
    encoder = xvector.encoder_net
    parts = {"enc_in_block": encoder.in_block, "enc_out": encoder, "pooled": xvector.pool_net}
    for key in ("concat_endpoint_block", "head_block"):
        parts[f"enc_{key}"] = getattr(encoder, key, None)
    for key in ("layer1", "layer2", "layer3", "layer4"):
        parts[f"enc_{key}"] = getattr(encoder, key)[-1] if hasattr(encoder, key) else None
    for index, block in enumerate(getattr(encoder, "blocks", [])):
        parts[f"enc_blocks_{index}"] = block[-1]
    for index, block in enumerate(getattr(encoder, "endpoint_blocks", None) or []):
        parts[f"enc_endpoint_blocks_{index}"] = block
    parts["proj_out"] = getattr(xvector, "proj", None)
    parts["proj_head_out"] = getattr(xvector, "proj_head_net", None)

    def keep(key):
        def hook(module, inputs, output):
            found[key] = output[0] if isinstance(output, tuple) else output

        return hook

    return [module.register_forward_hook(keep(key)) for key, module in parts.items() if module is not None]


def test_the_older_container_holds_the_same_model():
    zipped, arrays = load_pair("old_s_resnet1d")
    other = HyperTorchModel.auto_load(shared_path("fixtures/hyperion/old_s_resnet1d_nonzip.pth"))
    assert zipped.get_config() == other.get_config()
    assert zipped.get_config()["cos_scale"] == 24.0
    for key, value in zipped.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
    with torch.no_grad():
        close(other.extract_embed(torch.from_numpy(arrays["x_feats"])), arrays["embed"])


def test_averaged_weights_of_a_trainer_checkpoint():
    path = shared_path("fixtures/hyperion/trainer_ddp_ep0003.pth")
    arrays = np.load(path.with_suffix(".npz"))
    model = HyperTorchModel.auto_load(path, model_name="swa_model")
    with torch.no_grad():
        close(model.extract_embed(torch.from_numpy(arrays["x"])), arrays["embed_swa"])
        close(model(torch.from_numpy(arrays["x"])), arrays["logits_swa"])


MODERN = "fixtures/hyperion/modern_ckpt"


@pytest.mark.parametrize("where", ["", "/checkpoint_ep0003_step0000000009", "/checkpoint_ep0003_step0000000009/model"])
@pytest.mark.parametrize("rules", ["legacy", "modern"])
def test_directories_of_the_newer_release(where, rules):
    arrays = np.load(shared_path(f"{MODERN}/expected.npz"))
    path = shared_path(MODERN + where)
    x = torch.from_numpy(arrays["x"])
    for weights, suffix in (("model", ""), ("swa_model", "_swa")):
        key = f"embed{suffix}_{rules}"
        if key not in arrays:
            continue
        model = HyperTorchModel.auto_load(path, model_name=weights, frontend_rules=rules)
        assert model.get_config()["feats"]["frontend_rules"] == rules
        with torch.no_grad():
            close(model.extract_embed(x), arrays[key])


def test_release_rules_are_resolved_by_the_stored_filter_bank_and_saved():
    model = HyperTorchModel.auto_load(shared_path(MODERN))
    # its filter bank is of the release of 2024, though the directory is not
    assert model.get_config()["feats"]["frontend_rules"] == "legacy"


@pytest.mark.skipif(not have_shared(), reason="needs the fixture folder")
def test_no_native_file_is_forgotten():
    files = {p.stem for p in (shared_folder() / "fixtures/hyperion").glob("*.pth")}
    foreign = {name for name in files if name.startswith(("hf_", "old_hf_"))}
    assert files - foreign == {*NATIVE, "old_s_resnet1d_nonzip"}
