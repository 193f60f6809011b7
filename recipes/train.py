"""What torchrun starts: torchrun --standalone --nproc_per_node=2 train.py --config cfg.yaml [--trainer.num_epochs 3 ...]

Without torchrun it trains in one process: python train.py --config cfg.yaml. The same as the command ``hyperion-lite train``.
"""

import sys

from hyperion_lite.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
