"""A resumed run was another run: loss scale, its growth tracker and the random states were gone; the position in the epoch was lost;
or the random states had been moved to a GPU and could not be put back.

Right: all of them are in the checkpoint, on the CPU, and a run resumed anywhere ends with the same bits as one left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.runs import make_data
from tests.trainers.small_training import assert_same_state, make_trainer

OPTIONS: dict[str, Any] = {
    "use_amp": True,
    "amp_dtype": "float16",
    "grad_acc_steps": 2,
    "lrsched": {"lrsch_type": "cos_lr", "t": 10, "warmup_steps": 2, "update_lr_on_opt_step": True},
}


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in inner for tensor in tensors_in(item)]


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_resumed_anywhere_it_ends_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = make_trainer(tmp_path / "whole", **OPTIONS)
    whole.fit(make_data())
    cut = make_trainer(tmp_path / "cut", max_steps=stop, **OPTIONS)
    cut.fit(make_data())

    last = cut.find_last_checkpoint_dir()
    files = [*last.rglob("*.pt"), *last.rglob("*.pth")]
    assert {"optimizer.pt", "lr_scheduler.pt", "grad_scaler.pt", "rng_state.pth"} <= {f.name for f in files}
    for file in files:
        assert all(t.device.type == "cpu" for t in tensors_in(torch.load(file, weights_only=True)))

    again = make_trainer(tmp_path / "cut", seed=99, **OPTIONS)
    again.load_last_checkpoint()
    assert again.precision.scaler.state_dict() == cut.precision.scaler.state_dict()
    scaler = again.precision.scaler.state_dict()
    # an update that overflows halves the scale, and the count begins anew
    overflowed = scaler["scale"] < 65536
    assert 0 < scaler["_growth_tracker"] <= stop and (overflowed or scaler["_growth_tracker"] == stop)
    again.fit(make_data())
    assert again.global_step == whole.global_step
    assert_same_state(again.module.state_dict(), whole.module.state_dict())
    assert again.precision.scaler.state_dict() == whole.precision.scaler.state_dict()
