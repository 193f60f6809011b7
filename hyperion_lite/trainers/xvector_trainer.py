"""Training of x-vector models: classification of speakers, verification while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.metrics import categorical_accuracy
from hyperion_lite.trainers import batch_device
from hyperion_lite.trainers.distribution import full_tensor
from hyperion_lite.trainers.torch_trainer_base import TorchTrainerBase
from hyperion_lite.trainers.verification_eval import ALL_PAIRS, VerificationScorer, load_trial_key

logger = logging.getLogger(__name__)


class XVectorTrainer(TorchTrainerBase):
    """Trains a waveform x-vector (:class:`~hyperion_lite.models.wav2xvectors.wav2xvector.Wav2XVector`) as a classifier of speakers.

    Batches, as :meth:`~hyperion_lite.data.audio_dataset.AudioDataset.collate` makes them:

    * ``audio`` (batch, num_samples) float32, right-padded; the key is ``input_key``;
    * ``audio_lengths`` (batch,) int64, valid samples; without it nothing is padded; the key is ``<input_key>_lengths``;
    * ``speaker`` (batch,) int64, class index; the key is ``target_key``. Validation batches may lack it (speakers that training does not
      know): then only trials are scored;
    * ``sample_freq`` (batch,) integers, Hz; where it is there, it has to be the model's;
    * ``id``, a list of segment ids, on the host; needed for trials and used in messages.

    Metrics, averages over items: ``loss``, the cross entropy of the logits (with margins in training, without in validation), and
    ``acc``, the share of items whose largest logit is the target's. With trials, validation adds ``val_eer`` and ``val_min_dcf`` (prior
    0.01), so that ``best_metric: val_eer`` chooses checkpoints by what users care about.

    The margin follows its warm-up from the restored epoch or step on. A training sampler that mines hard prototypes
    (``num_hard_prototypes`` of 2 or more) gets the similarities of the class prototypes after each ``hard_prototypes_epochs`` epochs; they
    are part of its saved state.

    Args:
        model: the model.
        trials: what validation verifies: a file of trials with labels or a ``TrialKey`` over the ids of the validation segments; ``all``:
            every pair of validation segments; null for nothing.
        hard_prototypes_epochs: epochs between two refreshes of the sampler's hard prototypes; 0 for none.
        options: see :class:`~hyperion_lite.trainers.torch_trainer_base.TorchTrainerBase`.

    Raises:
        ConfigError: options that do not go together.
    """

    config_exclude: ClassVar[Collection[str]] = ("model", "trials")

    def __init__(self, model: Any, trials: Any = None, hard_prototypes_epochs: int = 1, **options: Any) -> None:
        if hard_prototypes_epochs < 0:
            raise ConfigError(f"hard_prototypes_epochs must not be negative, got {hard_prototypes_epochs}")
        super().__init__(model, **options)
        self.hard_prototypes_epochs = hard_prototypes_epochs
        self._all_pairs = isinstance(trials, str) and trials == ALL_PAIRS
        self._trials = None if trials is None or self._all_pairs else load_trial_key(trials)
        self._scorer: VerificationScorer | None = None

    # data

    def preprocess_batch(self, batch: Any) -> Any:
        """Check that ``batch`` has what is needed, on the host, where it costs no waiting.

        Raises:
            ValueError: a key is missing, or a target is no class of the model; names the segment.
        """
        if not isinstance(batch, Mapping) or self.input_key not in batch:
            there = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(f"a batch needs {self.input_key!r}, it has: {there}. See input_key and the data set")
        self._check_rate(batch)
        target = batch.get(self.target_key)
        if target is None:
            if self.module.training:
                raise ValueError(
                    f"a training batch needs {self.target_key!r}, it has: {', '.join(map(str, batch))}. "
                    "See target_key, and class_names of the data set"
                )
            return batch
        if not isinstance(target, torch.Tensor) or target.dim() != 1 or target.is_floating_point():
            raise ValueError(f"{self.target_key!r} must be (batch,) integers, class indices; found {_describe(target)}")
        num_classes = int(self.module.num_classes)  # type: ignore[arg-type]
        wrong = torch.nonzero((target < 0) | (target >= num_classes)).flatten().tolist()
        if wrong:
            ids = batch_device.batch_ids(batch)
            name = repr(ids[wrong[0]]) if ids else f"item {wrong[0]}"
            raise ValueError(
                f"{self.target_key} of {name} is class {int(target[wrong[0]])}, the model has {num_classes} classes; the class table of "
                "the data and num_classes of the model must agree"
            )
        return batch

    @property
    def sample_frequency(self) -> float | None:
        """Rate of the waveforms that the model takes, in Hz; ``None`` where it does not say."""
        return getattr(self.module, "sample_frequency", None)

    def _check_rate(self, batch: Mapping[str, Any]) -> None:
        rates = batch.get("sample_freq")
        if self.sample_frequency is None or not isinstance(rates, torch.Tensor):
            return
        wrong = torch.nonzero(rates != self.sample_frequency).flatten().tolist()
        if wrong:
            ids = batch_device.batch_ids(batch)
            raise ValueError(
                f"{ids[wrong[0]] if ids else 'an item'!r} has {int(rates[wrong[0]])} Hz, the model takes {self.sample_frequency:g} Hz; set "
                "target_sample_freq of the data set to convert all audio"
            )

    def model_inputs(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the model is called with: input and lengths. Waveforms (batch, num_samples) here."""
        return batch[self.input_key], batch.get(f"{self.input_key}_lengths")

    # loss

    def compute_loss(self, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Cross entropy and accuracy of a batch, see the class; in validation its embeddings go to the trials."""
        x, lengths = self.model_inputs(batch)
        y = batch[self.target_key].long()
        logits = self.model(x, x_lengths=lengths, y=y).float()
        self._collect_embeddings(batch, x, lengths, y)
        return functional.cross_entropy(logits, y), {"acc": categorical_accuracy(logits.detach(), y)}

    def _collect_embeddings(
        self, batch: Any, x: torch.Tensor, lengths: torch.Tensor | None, y: torch.Tensor | None
    ) -> None:
        if self._scorer is None or self.module.training:
            return
        ids = batch_device.batch_ids(batch)
        if not ids:
            raise ValueError("validation trials need the segment ids of the batches, under the key 'id'")
        # the bare module: what spreads a model over ranks wraps its forward alone
        self._scorer.add(ids, self.module.extract_embed(x, x_lengths=lengths), y)  # type: ignore[operator]

    def validation_step(self, batch_idx: int, batch_data: Any) -> tuple[int, dict[str, Any]]:
        """As in the base class; of batches without targets only the embeddings are used, for the trials."""
        if self.target_key in batch_data:
            return super().validation_step(batch_idx, batch_data)
        batch = batch_device.without_repeats(self.preprocess_batch(batch_data))
        num_items = self.batch_size(batch)
        if num_items:
            with torch.no_grad(), self.precision.autocast():
                batch = batch_device.to_device(batch, self.device)
                self._collect_embeddings(batch, *self.model_inputs(batch), None)
        return num_items, {}

    def validation_epoch(self, data_loader: Any) -> dict[str, float]:
        """As in the base class, with ``val_eer`` and ``val_min_dcf`` of the trials."""
        if self._trials is None and not self._all_pairs:
            return super().validation_epoch(data_loader)
        self._scorer = VerificationScorer(self._trials)
        try:
            logs = super().validation_epoch(data_loader)
            parts = self.distribution.all_gather_object(self._scorer.part())
            rates = self._scorer.metrics(parts) if self.is_main else {}
        finally:
            self._scorer = None
        logs.update({f"val_{name}": value for name, value in self.distribution.broadcast_object(rates).items()})
        return logs

    # the course of training

    def on_step_begin(self) -> None:
        """The margin for this epoch and step; its warm-up counts from the phase that last changed the model."""
        epoch, step = self._change_origin
        self.module.update_loss_margin(self.cur_epoch - epoch, self.global_step - step)  # type: ignore[operator]

    def on_phase_begin(self, new_data: bool) -> None:
        """A sampler that mines hard prototypes, and is new with this phase, begins with those that the model has now."""
        sampler = self._mining_sampler() if new_data else None
        if sampler is not None and self.hard_prototypes_epochs:
            self._hand_affinities(sampler)

    def on_epoch_end(self, logs: dict[str, Any]) -> None:
        """Hand the similarities of the class prototypes to a sampler that mines hard prototypes."""
        sampler = self._mining_sampler()
        if sampler is None or self.hard_prototypes_epochs == 0 or self.cur_epoch % self.hard_prototypes_epochs:
            return
        self._hand_affinities(sampler)

    def _hand_affinities(self, sampler: Any) -> None:
        affinity = full_tensor(self.module.compute_prototype_affinity())  # type: ignore[operator]
        # every rank has to draw the same batches, so that all take what rank 0 has computed
        sampler.set_hard_prototypes(self.distribution.broadcast_object(affinity.float().cpu().numpy()))

    def _mining_sampler(self) -> Any:
        data = None if self._position is None else self._position.data
        parts: list[Any] = [data, getattr(data, "batch_sampler", None), getattr(data, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_hard_prototypes") and part.num_hard_prototypes > 1:
                return part
        return None


def _describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
