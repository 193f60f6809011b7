"""Parameters that no gradient reaches (a masked embedding, a dropped layer, a frozen part) stopped distributed training with an error
that names numbers, or made it hang.

Right: what is frozen takes no part; what learns and is not reached is named in the error.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from tests.trainers.small_training import Batches, SmallClassifier, SmallTrainer, make_trainer, sgd
from tests.two_ranks import in_two_ranks


class WithMaskEmbedding(SmallClassifier):
    """Has a parameter that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.mask_emb = torch.nn.Parameter(torch.zeros(3))


def train_both(rank: int, path: Path) -> int:
    frozen = make_trainer(path / "frozen", num_epochs=1, train_mode="ft-out")
    frozen.fit(Batches())
    unreached = SmallTrainer(WithMaskEmbedding(), exp_path=str(path / "exp"), optim=sgd, num_epochs=1, device="cpu")
    with pytest.raises(ConfigError, match=r"got no gradient: mask_emb.*freeze"):
        unreached.fit(Batches())
    return frozen.global_step


def test_frozen_or_named(tmp_path: Path) -> None:
    assert in_two_ranks(train_both, tmp_path) == [5, 5]
