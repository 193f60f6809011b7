from __future__ import annotations

import io
import logging

import pytest

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.loggers import ProgLogger
from hyperion_lite.loggers.meter import ThroughputMeter, format_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_throughput_leaves_out_validation() -> None:
    clock = Clock()
    meter = ThroughputMeter(clock)
    meter.begin({"step": 0})
    assert meter.rates() == {}
    for step in range(1, 5):
        clock.now += 2.0
        meter.add({"step": step, "num_items": 32, "audio_seconds": 96.0})
        clock.now += 50.0
        meter.resume()
    assert meter.rates() == pytest.approx({"utt/s": 16.0, "audio_s/s": 48.0})


def test_remaining_time() -> None:
    clock = Clock()
    meter = ThroughputMeter(clock)
    meter.begin({"epoch": 2, "step": 20})
    assert meter.remaining({"epoch": 2, "batch": 0, "step": 20, "max_steps": 100}) is None
    clock.now += 30.0
    by_steps = {"step": 30, "max_steps": 100}
    assert meter.remaining(by_steps) == pytest.approx(70 * 3.0)
    # two batches an update: 20 batches and so 10 updates an epoch, 4 epochs in all
    by_epochs = {"epoch": 3, "batch": 0, "step": 30, "num_epochs": 4, "num_batches": 20}
    assert meter.remaining(by_epochs) == pytest.approx(10 * 3.0)
    assert meter.remaining({**by_epochs, "max_steps": 35}) == pytest.approx(5 * 3.0)
    assert meter.remaining({"step": 30}) is None


def test_seconds_as_text() -> None:
    assert [format_seconds(s) for s in (None, 0.4, 61.0, 3723.6)] == ["?", "0:00:00", "0:01:01", "1:02:04"]


def run(logger: ProgLogger, clock: Clock) -> None:
    logger.on_train_begin(epochs=2, epoch=0, step=0)
    for epoch in range(2):
        logger.on_epoch_begin(epoch, batches=40)
        for batch in range(1, 41):
            clock.now += 1.0
            step = epoch * 40 + batch
            logger.on_batch_end(
                {"step": step, "batch": batch, "num_items": 8, "audio_seconds": 16.0, "train_loss": 1.0 / step}
            )
        logger.on_epoch_end({"train_loss": 0.5, "val_eer": 0.25}, step=(epoch + 1) * 40)
    logger.on_train_end()


def test_bar() -> None:
    clock, screen = Clock(), io.StringIO()
    run(ProgLogger(interval=20, bar=True, file=screen, clock=clock), clock)
    text = screen.getvalue()
    assert "epoch 1/2" in text and "epoch 2/2" in text and "40/40" in text
    assert "utt/s=8" in text and "audio_s/s=16" in text and "train_loss=" in text
    assert "end of epoch 1/2, step 40: train_loss 0.5, val_eer 0.25" in text


def test_log_lines_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO):
        run(ProgLogger(interval=5, file=io.StringIO(), clock=clock, min_seconds=10.0), clock)
    lines = [record.message for record in caplog.records]
    assert lines[0] == "epoch 1/2, batch 10/40: train_loss 0.1, utt/s 8, audio_s/s 16, eta 0:01:10"
    assert sum("batch" in line for line in lines) == 8
    assert lines[-1].startswith("end of epoch 2/2, step 80: train_loss 0.5, val_eer 0.25")


def test_a_resumed_epoch_starts_where_it_was() -> None:
    screen = io.StringIO()
    logger = ProgLogger(interval=1, bar=True, file=screen)
    logger.on_train_begin({"epoch": 0, "step": 30})
    logger.on_epoch_begin({"epoch": 0, "batch": 30, "num_batches": 40})
    assert logger._bar is not None and logger._bar.n == 30
    logger.on_batch_end({"batch": 31, "step": 31})
    assert logger._bar.n == 31
    logger.on_train_end({})


def test_told_at_intervals_of_updates_only() -> None:
    """With three batches an update, and told every fifth update: every call counts."""
    logger = ProgLogger(interval=5, bar=True, file=io.StringIO())
    logger.on_train_begin({"step": 2})
    logger.on_epoch_begin({"epoch": 1, "num_batches": 40})
    logger.on_batch_end({"batch": 4, "step": 5})
    assert logger._bar is not None and logger._bar.n == 4
    logger.on_train_end({})


def test_wrong_interval() -> None:
    with pytest.raises(ConfigError, match="interval"):
        ProgLogger(interval=0)
