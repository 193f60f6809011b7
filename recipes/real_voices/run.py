"""Train and test a speaker embedder on the real voices of Debian packages. See README.md.

python run.py                                  # everything, below ./data and ./exp
python run.py --stage train finetune           # some stages
python run.py --smoke --root /tmp/try          # the same stages on a few made-up voices, in a minute or two
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import stages
from stages import CONFIGS, run

STAGES = ("prepare", "train", "finetune", "extract", "score")
_SMOKE = ["data.train.sampler.max_batches_per_epoch=2", "data.train.sampler.max_batch_size=8", "trainer.num_epochs=1"]


class Recipe:
    """The stages; what one writes is below ``root``, where the next ones find it."""

    def __init__(self, root: Path, cache: Path, smoke: bool, settings: list[str], ranks: int) -> None:
        self.data = root / "data" / "real_voices"
        self.exp = root / "exp" / "real_voices"
        self.cache = cache
        self.smoke = smoke
        self.settings = (_SMOKE if smoke else []) + settings
        self.ranks = ranks

    @property
    def systems(self) -> dict[str, Path]:
        """Models that are tested."""
        return {"untrained": self.exp / "untrained", "trained": self.exp / "train", "fine-tuned": self.exp / "finetune"}

    def prepare(self) -> None:
        """Corpus, data sets, trial lists."""
        if self.smoke:
            rows, rate = stages.made_up_utterances(self.data), 16000
        else:
            from corpus import SAMPLE_FREQ, build_corpus, fetch

            self.data.mkdir(parents=True, exist_ok=True)
            build_corpus(fetch(self.cache), self.data)
            with open(self.data / "utterances.csv", encoding="utf-8", newline="") as file:
                rows, rate = list(csv.DictReader(file)), SAMPLE_FREQ
        for split in ("train", "heldout"):
            chosen = [row for row in rows if row["split"] == split]
            dataset = stages.dataset_of(chosen, self.data, rate)
            dataset.save(self.data / split)
            minutes = sum(float(row["duration"]) for row in chosen) / 60
            speakers = len({row["speaker"] for row in chosen})
            print(f"{split}: {len(chosen)} utterances of {speakers} speakers, {minutes:.1f} min")
        for source, key in stages.trials_by_source(dataset.segments).items():
            key.save(self.data / f"trials_{source}.csv")
        # a part of the held-out clips, to watch the training
        val = dataset.filter(ids=stages.first_of_each(chosen, 6))
        val.save(self.data / "val")
        watched = list(stages.trials_by_source(val.segments).values())
        stages.joined(watched, 4000).save(self.data / "trials_val.csv")

    def _data_options(self) -> list[str]:
        return [
            f"--data.train.dataset.dataset_path={self.data / 'train'}",
            f"--data.val.dataset.dataset_path={self.data / 'val'}",
            f"--data.val.trials={self.data / 'trials_val.csv'}",
        ]

    def _train_options(self) -> list[str]:
        return ["--config", str(CONFIGS / "real_voices.yaml"), *self._data_options(), *stages.overrides(self.settings)]

    def train(self) -> None:
        """Train from scratch; goes on where it was when it is interrupted."""
        run("train", *self._train_options(), f"--trainer.exp_path={self.exp / 'train'}", ranks=self.ranks)

    def finetune(self) -> None:
        """Large-margin fine-tuning on longer chunks."""
        options = [f"--finetune.path={self.exp / 'train'}", f"--trainer.exp_path={self.exp / 'finetune'}"]
        config = CONFIGS / "real_voices_finetune.yaml"
        settings = stages.overrides(self.settings)
        run("train", "--config", config, *self._data_options(), *options, *settings, ranks=self.ranks)

    def extract(self) -> None:
        """Embeddings of the held-out clips, of the untrained network too."""
        self._save_untrained()
        for name, model in self.systems.items():
            dataset = self.data / "heldout" / "dataset.yaml"
            output = self.exp / f"embeddings_{name}.npz"
            run("extract", "--model", model, "--input", dataset, "--output", output, "--overwrite", "--quiet")

    def _save_untrained(self) -> None:
        import torch

        from hyperion_lite.data.manifests import HyperDataset
        from hyperion_lite.trainers.training_options import parse_options
        from hyperion_lite.trainers.training_run import make_model

        _, config = parse_options(self._train_options())
        torch.manual_seed(config["seed"])
        ids = HyperDataset.load(self.data / "train").classes["speaker"].class_ids
        make_model(config, ids).save(self.systems["untrained"])

    def score(self) -> None:
        """Error rates by source and stage, in ``results.md``."""
        from hyperion_lite.data.manifests import TrialKey

        names = [path.stem.removeprefix("trials_") for path in sorted(self.data.glob("trials_*.csv"))]
        keys = {n: TrialKey.from_file(self.data / f"trials_{n}.csv") for n in names if n != "val"}
        results = {name: stages.error_rates(self.exp / f"embeddings_{name}.npz", keys) for name in self.systems}
        table = stages.result_table(results, keys)
        (self.exp / "results.md").write_text(table, encoding="utf-8")
        print(table)


def main() -> None:
    """Parse the options and run the stages."""
    parser = argparse.ArgumentParser(description="Train and test a speaker embedder on real voices.")
    stages.stage_argument(parser, STAGES)
    parser.add_argument("--root", type=Path, default=Path(), help="folder that gets data/ and exp/ (.)")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache" / "hyperion_lite" / "real_voices",
        help="where packages are kept, about 1.2 GB (~/.cache/hyperion_lite/real_voices)",
    )
    parser.add_argument("--ranks", type=int, default=1, help="processes that train (1)")
    parser.add_argument("--smoke", action="store_true", help="a few made-up voices and steps: does it run?")
    args = parser.parse_args()
    recipe = Recipe(args.root, args.cache, args.smoke, args.set, args.ranks)
    stages.run_stages({name: getattr(recipe, name) for name in STAGES}, args.stage)


if __name__ == "__main__":
    main()
