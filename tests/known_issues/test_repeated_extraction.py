"""The embedding of one file changed from run to run: dither, a random crop, or dropout that stayed on.

Right: in ``eval()`` it is the same to the last bit, in this process and in the next, whatever the random state.
"""

from __future__ import annotations

import copy
import hashlib
import subprocess
import sys
from typing import Any

import torch

from hyperion_lite import HyperTorchModel
from tests.models.small_models import ALL_MODELS, make_item


def dithering_config() -> dict[str, Any]:
    """A model with everything that is random while training."""
    class_name, config = ALL_MODELS["wav2-res2basic-dropout"]
    config = copy.deepcopy(config) | {"class_name": class_name}
    config["feats"]["audio_feats"]["dither"] = 1.0
    config["feats"]["spec_augment"] = {"time_mask_prob": 1.0, "freq_mask_prob": 1.0, "time_warp_prob": 1.0}
    return config


def digest_of(path: str) -> str:
    """Load the model and embed one waveform, under a random state that nobody chose."""
    torch.seed()
    model = HyperTorchModel.auto_load(path)
    with torch.inference_mode():
        embed = model.extract_embed(make_item(model, 8000)[None])
    return hashlib.sha256(embed.numpy().tobytes()).hexdigest()


def test_embeddings_are_the_same_in_every_run(tmp_path) -> None:
    torch.manual_seed(0)
    model = HyperTorchModel.load(cfg=dithering_config())
    model.save(tmp_path / "m.pth")
    x = make_item(model, 8000)[None]
    model.train()
    assert not torch.equal(model(x.repeat(2, 1)), model(x.repeat(2, 1))), (
        "random while training: the reason for the test"
    )

    path = str(tmp_path / "m.pth")
    here = {digest_of(path) for _ in range(3)}
    code = f"from tests.known_issues.test_repeated_extraction import digest_of; print(digest_of({path!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert here == {other.stdout.strip()}
