"""Where the numbers of a training run go: CSV, progress, TensorBoard, W&B. :mod:`.logger` says what they are told."""

from hyperion_lite.loggers.csv_logger import CSVLogger
from hyperion_lite.loggers.logger import Logger
from hyperion_lite.loggers.logger_list import LoggerList
from hyperion_lite.loggers.prog_logger import ProgLogger
from hyperion_lite.loggers.tensorboard_logger import TensorBoardLogger
from hyperion_lite.loggers.wandb_logger import WAndBLogger

__all__ = ["CSVLogger", "Logger", "LoggerList", "ProgLogger", "TensorBoardLogger", "WAndBLogger"]
