"""Fine-tuning, for one process or torchrun: finetune.py --config cfg.yaml [--finetune.path MODEL ...]

The same as the command ``hyperion-lite finetune``: ``--config builtin:finetune_new_speakers`` and its neighbours are ready to use.
"""

import sys

from hyperion_lite.cli.finetune import main

if __name__ == "__main__":
    sys.exit(main())
