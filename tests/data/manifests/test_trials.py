"""Trial lists and enrolment maps, in every spelling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests import EnrollmentMap, TrialKey, TrialNdx, load_trials

PAIRS = [("m1", "s1", True), ("m1", "s2", False), ("m2", "s1", False), ("m2", "s3", True)]

SPELLINGS = {
    "csv": "modelid,segmentid,targettype\nm1,s1,target\nm1,s2,nontarget\nm2,s1,nontarget\nm2,s3,target\n",
    "csv, other order and numbers": "label,test,enroll\n1,s1,m1\n0,s2,m1\n0,s1,m2\n1,s3,m2\n",
    "tsv": "modelid\tsegmentid\ttargettype\nm1\ts1\ttarget\nm1\ts2\timposter\nm2\ts1\tnon\nm2\ts3\ttgt\n",
    "kaldi": "m1 s1 target\nm1 s2 nontarget\n\nm2  s1 nontarget\nm2 s3 target\n",
    "kaldi with tabs": "m1\ts1\ttarget\nm1\ts2\tnontarget\nm2\ts1\tnontarget\nm2\ts3\ttarget\n",
    "label last as number": "m1 s1 1\nm1 s2 0\nm2 s1 0\nm2 s3 1\n",
    "label first": "1 m1 s1\n0 m1 s2\n0 m2 s1\n1 m2 s3\n",
}

trial_lists = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz"), st.booleans()), unique_by=lambda t: t[:2], min_size=1
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_key(tmp_path: Path, spelling: str) -> None:
    path = tmp_path / ("t.tsv" if spelling == "tsv" else "trials")
    path.write_text(SPELLINGS[spelling])
    key = TrialKey.from_file(path)
    assert [(*pair, bool(t)) for pair, t in zip(key, key.target, strict=True)] == PAIRS
    assert (key.num_trials, key.num_targets, key.num_nontargets) == (4, 2, 2)
    assert (key.model_ids, key.segment_ids) == (["m1", "m2"], ["s1", "s2", "s3"])
    ndx = TrialNdx.from_file(path)
    assert list(ndx) == [pair[:2] for pair in PAIRS] and type(ndx) is TrialNdx
    assert type(load_trials(path)) is TrialKey


@given(trial_lists)
def test_files_and_dense_form_give_the_trials_back(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("trials")
    key = TrialKey.from_pairs(pairs)
    assert [(*p, bool(t)) for p, t in zip(key, key.target, strict=True)] == pairs
    for name in ("k.csv", "k.txt", "k.parquet", "k.tsv"):
        key.save(folder / name)
        again = TrialKey.from_file(folder / name)
        assert list(again) == list(key) and again.target.tolist() == key.target.tolist()
    target, nontarget = key.dense()
    assert target.sum() == key.num_targets and nontarget.sum() == key.num_nontargets and not (target & nontarget).any()
    back = TrialKey.from_dense(key.model_ids, key.segment_ids, target, nontarget)
    assert {(*p, bool(t)) for p, t in zip(back, back.target, strict=True)} == set(pairs)
    ndx = key.to_ndx()
    np.testing.assert_array_equal(ndx.mask(), target | nontarget)
    assert set(TrialNdx.from_mask(ndx.model_ids, ndx.segment_ids, ndx.mask())) == set(ndx)


@given(trial_lists, st.integers(1, 5))
def test_filter_and_split(pairs: list[tuple[str, str, bool]], num_parts: int) -> None:
    key = TrialKey.from_pairs(pairs)
    kept = key.filter(models=["a", "b"], segments=["w"])
    assert [(*p, bool(t)) for p, t in zip(kept, kept.target, strict=True)] == [
        p for p in pairs if p[0] in "ab" and p[1] == "w"
    ]
    parts = [key.split(i, num_parts) for i in range(num_parts)]
    assert sorted(t for part in parts for t in part) == sorted(key)
    models = [m for part in parts for m in part.model_ids]
    assert len(set(models)) == len(models)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("m1 s1 target\nm1 s2\n", r":2: expected"),
        ("m1 s1 yes\n", "row 1: label 'yes'"),
        ("m1 s1 target\nm1 s1 nontarget\n", r"\('m1', 's1'\) occurs in rows 1 and 2"),
        ("modelid,other\na,b\n", "needs columns modelid and segmentid"),
        ("modelid,segmentid,targettype\na,,target\n", "row 1: 'segmentid' is empty"),
        ("modelid,segmentid\na,b\n", "target from nontarget"),
        ("m1 s1\n", "target from nontarget"),
    ],
)
def test_malformed_lists(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "trials").write_text(content)
    with pytest.raises(ManifestError, match=message) as caught:
        TrialKey.from_file(tmp_path / "trials")
    assert "trials" in str(caught.value)


def test_what_does_not_fit_together() -> None:
    with pytest.raises(ManifestError, match="number 5 of 1"):
        TrialNdx(["a"], ["b"], np.array([0]), np.array([5]))
    with pytest.raises(ManifestError, match="occurs twice"):
        TrialNdx(["a", "a"], ["b"], np.array([0]), np.array([0]))
    with pytest.raises(ManifestError, match=r"shape \(2, 2\)"):
        TrialNdx.from_mask(["a"], ["b"], np.ones((2, 2)))
    with pytest.raises(ManifestError, match="both"):
        TrialKey.from_dense(["a"], ["b"], np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(FileNotFoundError):
        TrialKey.from_file("none.csv")
    with pytest.raises(ValueError, match="part"):
        TrialKey.from_pairs(PAIRS).split(2, 2)


class TestEnrollmentMap:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("e.csv", "modelid,segmentid\nm1,a\nm1,b\nm2,c\n"),
            ("e.csv", "segmentid,modelid\na,m1\nb,m1\nc,m2\n"),
            ("e.tsv", "modelid\tsegmentid\nm1\ta\nm1\tb\nm2\tc\n"),
            ("spk2utt", "m1 a b\nm2 c\n"),
        ],
    )
    def test_every_spelling(self, tmp_path: Path, name: str, content: str) -> None:
        (tmp_path / name).write_text(content)
        table = EnrollmentMap.from_file(tmp_path / name)
        assert (table["m1"], table["m2"]) == (["a", "b"], ["c"])
        assert (table.model_ids, table.segment_ids, len(table)) == (["m1", "m2"], ["a", "b", "c"], 3)
        table.save(tmp_path / "again.csv")
        assert list(EnrollmentMap.from_file(tmp_path / "again.csv")) == list(table)

    def test_parts(self) -> None:
        table = EnrollmentMap.from_mapping({"m1": ["a", "b"], "m2": ["c"]})
        assert list(table.filter(segments=["b", "c"])) == [("m1", "b"), ("m2", "c")]
        assert [list(table.split(i, 2)) for i in range(2)] == [[("m1", "a"), ("m1", "b")], [("m2", "c")]]
        assert "m1" in table and "a" not in table

    def test_faults(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError, match="'m9'"):
            EnrollmentMap.from_mapping({"m1": ["a"]})["m9"]
        for content, message in (
            ("modelid,segmentid\nm,a\nm,a\n", "rows 1 and 2"),
            ("modelid,x\nm,a\n", "needs columns"),
            ("m1\n", ":1: expected"),
            ("", "is empty"),
        ):
            (tmp_path / "e").write_text(content)
            with pytest.raises(ManifestError, match=message):
                EnrollmentMap.from_file(tmp_path / "e")
