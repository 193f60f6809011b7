"""Training: the loop and its parts, and the trainers of each task.

The parts know nothing of each other and can be read alone: :mod:`.distribution` (ranks, wrapping, agreement), :mod:`.precision`
(autocast, loss scaling), :mod:`.accumulation` (micro-batches of one update), :mod:`.gradients` (clipping, bad batches),
:mod:`.averaging` (SWA, EMA), :mod:`.events` (signals, schedules), :mod:`.metric_accumulator`, :mod:`.batch_device`,
:mod:`.data_position`, :mod:`.rng_state`, :mod:`.optimizer_state`, and the checkpoint: :mod:`.checkpoint_store` (directories),
:mod:`.checkpoint_files` (what is in one), :mod:`.compatibility` (what may resume from one).

On them stand :mod:`.torch_trainer_base` and the task trainers :mod:`.xvector_trainer` and :mod:`.xvector_trainer_from_wav`, with
:mod:`.verification_eval` (error rates on trials) and :mod:`.report`; :mod:`.training_options`, :mod:`.training_data` and
:mod:`.training_run` are the train command without its command line.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "TorchTrainerBase": "hyperion_lite.trainers.torch_trainer_base",
    "XVectorTrainer": "hyperion_lite.trainers.xvector_trainer",
    "XVectorTrainerFromWav": "hyperion_lite.trainers.xvector_trainer_from_wav",
}

__all__ = list(_PUBLIC)

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
