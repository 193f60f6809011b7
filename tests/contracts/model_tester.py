"""What holds for every model, stated once. A test class calls it for each model it knows."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch

from hyperion_lite.layers.norm import GroupNorm
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from tests.models.small_models import make_item, minimum_length, pad_items, takes_waveforms

PADDING_VALUES = (0.0, 1e3, float("nan"), float("inf"))
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def has_instance_norm(model: torch.nn.Module) -> bool:
    """Whether some layer normalises each channel of an item by itself."""
    return any(isinstance(m, GroupNorm) and m.num_groups == m.num_channels for m in model.modules())


class ModelTester:
    """Contracts of a model that gives one embedding an item.

    Args:
        model: in ``eval()``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def random_lengths(self, count: int, seed: int, least: int) -> list[int]:
        """Lengths down to ``least``, which is among them."""
        most = least + (9000 if takes_waveforms(self.model) else 70)
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(least, most, (count - 1,), generator=generator).tolist()
        return [*lengths, least]

    def batch_invariance(self, dtype: torch.dtype, padding_value: float, seed: int = 0) -> None:
        """An item's embedding is the same alone and in a padded batch, whatever fills the padding.

        Down to the shortest item that the model accepts, but for instance norms in single precision: dividing by the standard
        deviation of a handful of values amplifies the rounding of the convolutions before it beyond the tolerance.
        """
        model = self.model.to(dtype)
        least = minimum_length(model)
        if dtype == torch.float32 and has_instance_norm(model):
            least = max(least, 16)
        items = [make_item(model, n, seed + i, dtype) for i, n in enumerate(self.random_lengths(3, seed, least))]
        x, lengths = pad_items(items, padding_value)
        with torch.no_grad():
            batch = model.extract_embed(x, x_lengths=lengths)
            logits = model(x, x_lengths=lengths)
            for index, item in enumerate(items):
                alone = model.extract_embed(item[None])
                assert torch.isfinite(alone).all()
                error = relative_error(batch[index], alone[0])
                assert error <= TOLERANCE[dtype], f"item {index} of {lengths.tolist()}: {error}"
                assert relative_error(logits[index], model(item[None])[0]) <= 10 * TOLERANCE[dtype]

    def voice_selection(self, padding_value: float) -> None:
        """With a selection of samples or frames, an item's embedding is the same alone and in a padded batch."""
        model = self.model
        items = [make_item(model, minimum_length(model) + extra, i) for i, extra in enumerate((9000, 6000))]
        x, lengths = pad_items(items, padding_value)
        with torch.no_grad():
            frames = model.feat_lengths(lengths).tolist()
            for name, sizes in (("vad_samples", lengths.tolist()), ("vad_feats", frames)):
                keep = torch.rand(2, max(sizes), generator=torch.Generator().manual_seed(1)) < 0.8
                batch = model.extract_embed(x, x_lengths=lengths, **{name: keep})
                for i, item in enumerate(items):
                    alone = model.extract_embed(item[None], **{name: keep[i : i + 1, : sizes[i]]})
                    assert relative_error(batch[i], alone[0]) <= 1e-5, name

    def chunks(self) -> None:
        """In chunks, an item's embedding is the same alone and in a padded batch."""
        model = self.model
        frames = max(model.xvector.encoder_net.min_chunk_length + 8, 60)
        seconds = frames * model.frame_shift_samples / model.sample_frequency
        items = [make_item(model, round(n * seconds * model.sample_frequency), i) for i, n in enumerate((2.3, 1.4))]
        x, lengths = pad_items(items, float("nan"))
        with torch.no_grad():
            batch = model.extract_embed(x, x_lengths=lengths, chunk_length=seconds)
            for i, item in enumerate(items):
                alone = model.extract_embed(item[None], chunk_length=seconds)
                assert relative_error(batch[i], alone[0]) <= 1e-5

    def shapes_and_determinism(self) -> None:
        """One embedding an item, logits of every class, bit-identical on repetition, no state moved."""
        model = self.model
        x = torch.stack(
            [make_item(model, minimum_length(model) + 3000 * takes_waveforms(model) + 30, i) for i in (0, 1)]
        )
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            first, second = model.extract_embed(x), model.extract_embed(x)
            logits = model(x)
        assert first.shape == (2, model.embed_dim)
        assert logits.shape == (2, model.num_classes)
        assert torch.equal(first, second)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())

    def round_trip(self, folder: Path) -> None:
        """Every saved form loads to the same configuration, the same bits, the same embeddings."""
        model = self.model
        x = make_item(model, minimum_length(model) + 2000)[None]
        expected = model.extract_embed(x)
        for name in ("single.pth", "single.pt", "directory"):
            model.save(folder / name)
            loaded = HyperTorchModel.auto_load(folder / name)
            assert type(loaded) is type(model)
            assert loaded.get_config() == model.get_config()
            state, other = model.state_dict(), loaded.state_dict()
            assert list(state) == list(other)
            for key in state:
                assert torch.equal(state[key], other[key]) and state[key].dtype == other[key].dtype, key
            assert torch.equal(loaded.extract_embed(x), expected)
        content = torch.load(folder / "single.pth", weights_only=True)
        assert content["model_cfg"]["class_name"] == type(model).__name__
        assert "frontend_rules" not in json.dumps(content["model_cfg"])

    def configuration(self) -> None:
        """``cls(**config)`` rebuilds the model; the configuration is plain JSON."""
        config = self.model.get_config()
        assert json.loads(json.dumps(config)) == config
        assert type(self.model)(**config).get_config() == config

    def gradients_reach_the_input(self) -> None:
        """In every mode, and they are finite."""
        model = self.model
        for training in (False, True):
            model.train(training)
            x = torch.stack([make_item(model, minimum_length(model) + 900, i) for i in (0, 1)]).requires_grad_()
            lengths = torch.tensor([x.size(-1), x.size(-1) - 300])
            model(x, x_lengths=lengths).sum().backward()
            assert x.grad is not None and torch.isfinite(x.grad).all() and (x.grad[0] != 0).any()
            assert (x.grad[1, ..., lengths[1] :] == 0).all()
        model.eval()
        model.zero_grad()

    def frozen_stays_frozen(self) -> None:
        """Buffers of a frozen model are bit-equal after training steps, and nothing gets a gradient."""
        model = copy.deepcopy(self.model)
        for mode in model.valid_train_modes:
            model.set_train_mode(mode)
            assert model.train() is model
            frozen = {id(p) for m in model.frozen_modules(mode) for p in m.parameters()}
            frozen |= {id(p) for m in model.modules() for p in getattr(m, "fixed_parameters", list)()}
            for parameter in model.parameters():
                assert parameter.requires_grad == (id(parameter) not in frozen)
            buffers = {k: b.clone() for m in model.frozen_modules(mode) for k, b in m.named_buffers()}
            x = torch.stack([make_item(model, minimum_length(model) + 900, i) for i in (0, 1)])
            y = torch.tensor([0, 1])
            for _ in range(2):
                logits = model(x.requires_grad_(), y=y)
                logits.sum().backward()
            after = {k: b for m in model.frozen_modules(mode) for k, b in m.named_buffers()}
            assert all(torch.equal(buffers[k], after[k]) for k in buffers), mode
            assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
            model.zero_grad(set_to_none=True)
