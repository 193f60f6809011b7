"""Verification on a trial list: against an independent computation, and independent of batches and ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.manifests import TrialKey
from hyperion_lite.trainers.verification_eval import VerificationScorer, all_pairs, load_trial_key


def scorer_with(ids, vectors, labels, trials=None):
    scorer = VerificationScorer(trials)
    scorer.add(ids, torch.as_tensor(vectors), torch.as_tensor(labels))
    return scorer


def brute_force_eer(target, nontarget):
    """Crossing of the convex hull of (p_fa, p_miss), by trying every pair of operating points."""
    scores = np.sort(np.concatenate([target, nontarget]))
    thresholds = [scores[0] - 1, *(scores[:-1] + np.diff(scores) / 2), scores[-1] + 1]
    points = [((nontarget >= t).mean(), (target < t).mean()) for t in thresholds]
    best = 1.0
    for x0, y0 in points:
        for x1, y1 in points:
            d0, d1 = y0 - x0, y1 - x1
            if d0 >= 0 >= d1:
                w = d0 / (d0 - d1) if d0 != d1 else 0.0
                best = min(best, y0 + w * (y1 - y0))
    return best


def test_eer_of_a_trial_list_is_that_of_the_cosines():
    rng = np.random.default_rng(0)
    ids = [f"u{i}" for i in range(9)]
    vectors = rng.standard_normal((9, 5)).astype(np.float32)
    pairs = [(ids[i], ids[j], (i + j) % 3 == 0) for i in range(9) for j in range(i)]
    scorer = scorer_with(ids, vectors, np.zeros(9, np.int64), TrialKey.from_pairs(pairs))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = {(a, b): float(unit[int(a[1])] @ unit[int(b[1])]) for a, b, _ in pairs}
    target = np.array([cosine[a, b] for a, b, t in pairs if t])
    nontarget = np.array([cosine[a, b] for a, b, t in pairs if not t])
    assert scorer.metrics([scorer.part()])["eer"] == pytest.approx(brute_force_eer(target, nontarget), abs=1e-6)


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(4, 12))
def test_ranks_and_batches_do_not_matter(seed, num_ranks, count):
    rng = np.random.default_rng(seed)
    ids = [f"u{i}" for i in range(count)]
    labels = np.arange(count) % 2
    vectors = rng.standard_normal((count, 3)).astype(np.float32)
    alone = scorer_with(ids, vectors, labels)
    ranks = [VerificationScorer() for _ in range(num_ranks)]
    for index in rng.permutation(count):
        rows = [int(index)]
        ranks[int(index) % num_ranks].add([ids[index]], torch.from_numpy(vectors[rows]), torch.from_numpy(labels[rows]))
    # a segment that fills up ranks comes twice
    ranks[-1].add([ids[0]], torch.from_numpy(vectors[:1]), torch.from_numpy(labels[:1]))
    assert alone.metrics([r.part() for r in ranks]) == pytest.approx(alone.metrics([alone.part()]))


def test_chunks_of_a_segment_count_with_the_average_of_their_directions():
    ids = ["a", "a", "b", "c"]
    vectors = np.array([[10.0, 0.0], [0.0, 0.1], [1.0, 1.0], [1.0, -1.0]], np.float32)
    key = TrialKey.from_pairs([("a", "b", True), ("a", "c", False)])
    scorer = scorer_with(ids, vectors, [0, 0, 0, 1], key)
    # the average of the directions of a is that of b, whatever the lengths
    assert scorer.metrics([scorer.part()])["eer"] == 0.0


def test_all_pairs_are_every_pair_once():
    key = all_pairs(["a", "b", "c"], ["x", "y", "x"])
    assert [(*pair, bool(t)) for pair, t in zip(key, key.target, strict=True)] == [
        ("a", "b", False),
        ("a", "c", True),
        ("b", "c", False),
    ]


def test_too_many_pairs_keep_all_targets():
    labels = [i % 10 for i in range(60)]
    key = all_pairs([str(i) for i in range(60)], labels, most=400)
    assert key.num_targets == 10 * 6 * 5 // 2
    assert len(key) == 400


def test_a_trial_of_an_unknown_segment_is_named():
    scorer = scorer_with(["utt1"], np.ones((1, 2), np.float32), [0], TrialKey.from_pairs([("utt1", "utt2", True)]))
    with pytest.raises(ConfigError, match="'utt2', which is no validation segment, did you mean 'utt1'"):
        scorer.metrics([scorer.part()])


def test_without_both_kinds_of_trials_there_is_no_rate():
    scorer = scorer_with(["a", "b"], np.ones((2, 2), np.float32), [0, 0])
    assert scorer.metrics([scorer.part()]) == {}
    assert VerificationScorer().metrics([]) == {}


def test_all_pairs_need_labels():
    with pytest.raises(ConfigError, match="need the speaker"):
        VerificationScorer().add(["a"], torch.ones(1, 2))


def test_a_list_without_labels_is_refused(tmp_path):
    (tmp_path / "trials.csv").write_text("modelid,segmentid\na,b\n")
    with pytest.raises(ValueError, match="target"):
        load_trial_key(tmp_path / "trials.csv")
