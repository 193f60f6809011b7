"""Fine-tune speaker embedders on real voices: onto speakers of other sources, and from a Hugging Face encoder. See README.md.

python run.py --data ../real_voices/data/real_voices    # what the recipe real_voices has prepared
python run.py --smoke --root /tmp/try                   # the same stages on a few made-up voices
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import stages
from stages import CONFIGS, run

STAGES = ("prepare", "train", "finetune", "encoder", "finetune_encoder", "extract", "score")
NEW_SOURCES = ("tuxpaint", "ktuberling")
"""Their speakers are not in the first training."""

_SMOKE = ["data.train.sampler.max_batches_per_epoch=2", "data.train.sampler.max_batch_size=8"]
_ECAPA = {
    "in_conv_channels": 96,
    "resb_type": "seres2bn",
    "resb_channels": 96,
    "resb_dilations": "[2, 3, 4]",
    "res2net_scale": 4,
    "multilayer": "true",
    "multilayer_concat": "true",
    "endpoint_channels": 192,
    "head_channels": 0,
    "norm_before": "false",
}
# an encoder as small as this learns on two CPU cores; the layout is that of WavLM, 50 frames a second
_ENCODER = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "conv_dim": (32, 48, 64, 64, 64, 64, 64),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_buckets": 64,
    "max_bucket_distance": 200,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}


class Recipe:
    """The stages; what one writes is below ``root``, where the next ones find it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.data = args.root / "data" / "finetune_real_voices"
        self.exp = args.root / "exp" / "finetune_real_voices"

    @property
    def systems(self) -> dict[str, Path]:
        """Models that are tested."""
        names = {
            "other speakers": "train",
            "fine-tuned": "finetune",
            "encoder, random": "encoder_untrained",
            "encoder, fine-tuned": "finetune_encoder",
        }
        return {title: self.exp / name for title, name in names.items()}

    def prepare(self) -> None:
        """Data sets of the first training and of the new speakers, and trial lists."""
        rows, root, rate, new = self._utterances()
        for name, is_new in (("first", False), ("new", True)):
            chosen = [row for row in rows if (stages.source_of(row["speaker"]) in new) == is_new]
            train = [row for row in chosen if row["split"] == "train"]
            heldout = [row for row in chosen if row["split"] == "heldout"]
            stages.dataset_of(train, root, rate).save(self.data / name / "train")
            dataset = stages.dataset_of(heldout, root, rate)
            dataset.save(self.data / name / "heldout")
            if is_new:
                for source, key in stages.trials_by_source(dataset.segments).items():
                    key.save(self.data / f"trials_{source}.csv")
            val = dataset.filter(ids=stages.first_of_each(heldout, 5))
            val.save(self.data / name / "val")
            watched = list(stages.trials_by_source(val.segments).values())
            stages.joined(watched, 4000).save(self.data / name / "trials_val.csv")
            speakers = len({row["speaker"] for row in chosen})
            print(f"{name}: {speakers} speakers, {len(train)} utterances for training, {len(heldout)} for tests")

    def _utterances(self) -> tuple[list[dict[str, str]], Path, int, Sequence[str]]:
        if self.args.smoke:
            return stages.made_up_utterances(self.data), self.data, 16000, ("source1",)
        with open(self.args.data / "utterances.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file)), self.args.data, 16000, NEW_SOURCES

    def _data_options(self, name: str) -> list[str]:
        return [
            f"--data.train.dataset.dataset_path={self.data / name / 'train'}",
            f"--data.val.dataset.dataset_path={self.data / name / 'val'}",
            f"--data.val.trials={self.data / name / 'trials_val.csv'}",
        ]

    def _run(self, command: str, config: str, data: str, exp: str, *options: str) -> None:
        settings = (_SMOKE if self.args.smoke else []) + self.args.set
        seconds = run(
            command,
            *("--config", CONFIGS / f"{config}.yaml"),
            *self._data_options(data),
            f"--trainer.exp_path={self.exp / exp}",
            *options,
            *stages.overrides(settings),
            ranks=self.args.ranks,
        )
        print(f"{exp}: {seconds:.0f} s")

    # an embedder for new speakers

    def train(self) -> None:
        """A small ECAPA-TDNN for the speakers of the first sources, from scratch; the rest is that of real_voices.yaml."""
        epochs = 1 if self.args.smoke else 6
        steps = f"--trainer.lrsched.t={epochs * 50}"
        network = [f"--model.xvector.resnet_enc.{key}={value}" for key, value in _ECAPA.items()]
        batches = _short_chunks(50, 48)
        self._run("train", "real_voices", "first", "train", f"--trainer.num_epochs={epochs}", *batches, steps, *network)

    def finetune(self) -> None:
        """The same network for the new speakers, in the phases of finetune_new_speakers.yaml."""
        path = f"--finetune.path={self.exp / 'train'}"
        self._run("finetune", "finetune_new_speakers", "new", "finetune", path, *_short_chunks(30, 48))

    # a Hugging Face encoder

    def encoder(self) -> None:
        """A tiny encoder with random weights, saved as transformers does."""
        import torch
        from transformers import WavLMConfig, WavLMModel

        torch.manual_seed(0)
        WavLMModel(WavLMConfig(**_ENCODER)).save_pretrained(self.exp / "wavlm")

    def finetune_encoder(self) -> None:
        """A speaker embedder out of the encoder, in the phases of finetune_wavlm.yaml."""
        options = self._encoder_options()
        self._save_untrained(options)
        self._run("finetune", "finetune_wavlm", "new", "finetune_encoder", *options)

    def _encoder_options(self) -> list[str]:
        return [
            f"--model.hf_feats.pretrained_model_path={self.exp / 'wavlm'}",
            "--model.xvector.pool_net={num_heads: 8, d_k: 32, d_v: 32}",
            "--model.xvector.embed_dim=128",
            "--data.train.data_loader.num_workers=0",
            "--trainer.use_amp=false",
            *_phases_for_random_weights(1 if self.args.smoke else 7),
            *_short_chunks(30, 32),
        ]

    def _save_untrained(self, options: Sequence[str]) -> None:
        import torch

        from hyperion_lite.data.manifests import HyperDataset
        from hyperion_lite.trainers.training_options import parse_options
        from hyperion_lite.trainers.training_run import make_model

        _, config = parse_options(["--config", str(CONFIGS / "finetune_wavlm.yaml"), *options])
        torch.manual_seed(config["seed"])
        ids = HyperDataset.load(self.data / "new" / "train").classes["speaker"].class_ids
        make_model(config, ids).save(self.systems["encoder, random"])

    # tests

    def extract(self) -> None:
        """Embeddings of the held-out clips of the new speakers."""
        source = self.data / "new" / "heldout" / "dataset.yaml"
        for model in self.systems.values():
            run(
                "extract", "--model", model, "--input", source, "--output", _embeddings(model), "--overwrite", "--quiet"
            )

    def score(self) -> None:
        """Error rates by source and system, in ``results.md``."""
        from hyperion_lite.data.manifests import TrialKey

        keys = {p.stem.removeprefix("trials_"): TrialKey.from_file(p) for p in sorted(self.data.glob("trials_*.csv"))}
        results = {name: stages.error_rates(_embeddings(model), keys) for name, model in self.systems.items()}
        table = stages.result_table(results, keys)
        (self.exp / "results.md").write_text(table, encoding="utf-8")
        print(table)


def _embeddings(model: Path) -> Path:
    return model.with_name(f"embeddings_{model.name}.npz")


def _short_chunks(batches: int, size: int) -> list[str]:
    return [
        "--data.train.sampler.min_chunk_length=1.2",
        "--data.train.sampler.max_chunk_length=2.0",
        "--data.train.sampler.short_policy=whole",
        f"--data.train.sampler.max_batches_per_epoch={batches}",
        f"--data.train.sampler.max_batch_size={size}",
        "--data.train.sampler.num_chunks_per_seg_epoch=2",
    ]


def _phases_for_random_weights(joint: int) -> list[str]:
    """The phases of the configuration at a tenth of its length, with learning rates for an encoder that has learnt nothing yet."""
    end = 1 + joint
    phases = [
        "{name: head, train_mode: hf-feats-frozen, optim: {lr: 0.002}}",
        "{name: joint, start_epoch: 1, train_mode: full, optim: {lr: 0.002, layer_decay: 0.9}, lrsched: restart}",
        f"{{name: large margin, start_epoch: {end}, optim: {{lr: 0.0002}}, change: {{xvector: {{margin: 0.4, margin_warmup_epochs: 0}}}}, "
        "sampler: {min_chunk_length: 2.0, max_chunk_length: 3.0}}",
    ]
    return [f"--trainer.phases=[{', '.join(phases)}]", f"--trainer.num_epochs={end + 1}"]


def main() -> None:
    """Parse the options and run the stages."""
    parser = argparse.ArgumentParser(description="Fine-tune speaker embedders on real voices.")
    stages.stage_argument(parser, STAGES)
    parser.add_argument("--root", type=Path, default=Path(), help="folder that gets data/ and exp/ (.)")
    parser.add_argument("--data", type=Path, help="data/real_voices of the recipe real_voices, after its stage prepare")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train (1)")
    parser.add_argument("--smoke", action="store_true", help="a few made-up voices and steps: does it run?")
    args = parser.parse_args()
    if not args.smoke and args.data is None and {"prepare", "all"} & set(args.stage):
        parser.error("the stage prepare needs --data")
    recipe = Recipe(args)
    stages.run_stages({name: getattr(recipe, name) for name in STAGES}, args.stage)


if __name__ == "__main__":
    main()
