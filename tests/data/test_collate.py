from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data.collate import collate


def item(name: str, length: int, **fields):
    return {"id": name, "sample_freq": 16000, "audio": torch.arange(1, length + 1, dtype=torch.float32), **fields}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_every_field_is_reordered_with_the_audio(sizes):
    items = [
        item(f"s{i}", n, speaker=i, score=i / 2, text="x" * i, vad=np.ones(m, dtype=bool), tags=["a"] * m)
        for i, (n, m) in enumerate(sizes)
    ]
    batch = collate(items)
    expected = sorted(range(len(items)), key=lambda i: -sizes[i][0])
    assert batch["id"] == [f"s{i}" for i in expected]
    assert batch["audio_lengths"].tolist() == [sizes[i][0] for i in expected]
    assert batch["audio_lengths"].dtype == torch.int64
    assert batch["speaker"].tolist() == expected and batch["speaker"].dtype == torch.int64
    assert batch["score"].tolist() == [i / 2 for i in expected] and batch["score"].dtype == torch.float32
    assert batch["text"] == ["x" * i for i in expected]
    assert batch["tags"] == [["a"] * sizes[i][1] for i in expected]
    assert batch["vad_lengths"].tolist() == [sizes[i][1] for i in expected] and batch["vad"].dtype == torch.bool
    assert torch.equal(batch["vad"].sum(1), batch["vad_lengths"])
    assert batch["audio"].dtype == torch.float32 and batch["audio"].shape == (len(items), max(n for n, _ in sizes))
    for row, i in zip(batch["audio"], expected, strict=True):
        assert torch.equal(row[: sizes[i][0]], items[i]["audio"]) and not row[sizes[i][0] :].any()


def test_the_items_are_left_as_they_were():
    items = [item("a", 2, xs=[1, 2], emb=np.arange(3)), item("b", 5, xs=[3], emb=np.arange(3))]
    before = copy.deepcopy(items)
    batch = collate(items)
    batch["audio"].fill_(7)
    batch["xs"].fill_(7)
    batch["emb"].fill_(7)
    assert [i["id"] for i in items] == ["a", "b"]
    for now, then in zip(items, before, strict=True):
        assert (
            torch.equal(now["audio"], then["audio"])
            and now["xs"] == then["xs"]
            and np.array_equal(now["emb"], then["emb"])
        )


def test_the_keys_of_a_batch_do_not_depend_on_whether_lengths_happen_to_agree():
    assert collate([item("a", 3, y=[1, 2]), item("b", 3, y=[1, 2])]).keys() == collate([item("a", 3, y=[1])]).keys()


def test_numbers_keep_the_type_of_their_source():
    batch = collate([item("a", 1, d=np.float64(0.1), i=np.int16(3), f=torch.tensor(2.0), b=True, m=1)])
    assert {k: batch[k].dtype for k in "difbm"} == {
        "d": torch.float64, "i": torch.int16, "f": torch.float32, "b": torch.bool, "m": torch.int64,
    }  # fmt: skip
    assert batch["d"].item() == 0.1
    mixed = collate([item("a", 1, v=1), item("b", 1, v=0.5)])["v"]
    assert mixed.tolist() == [1.0, 0.5]


def test_arrays_of_two_axes_are_padded_along_time():
    a, b = item("a", 2, feats=np.ones((3, 4))), item("b", 2, feats=np.ones((5, 4)))
    batch = collate([a, b])
    assert batch["feats"].shape == (2, 5, 4) and batch["feats_lengths"].tolist() == [3, 5]
    a, b = item("a", 2, feats=np.ones((4, 3))), item("b", 2, feats=np.ones((4, 5)))
    with pytest.raises(ValueError, match=r"'feats'.*'a'.*'b'.*time_axes"):
        collate([a, b])
    batch = collate([a, b], time_axes={"feats": -1})
    assert batch["feats"].shape == (2, 4, 5) and batch["feats_lengths"].tolist() == [3, 5]
    assert batch["feats"][0, :, 3:].eq(0).all()


def test_padding_never_holds_what_was_in_memory():
    batch = collate([item("a", 4), {**item("b", 2), "audio": torch.full((2,), float("nan"))}])
    assert batch["audio"][1, 2:].tolist() == [0, 0]


def test_empty_lists_and_missing_texts_are_kept():
    batch = collate([item("a", 3, y=[], t=None, l=[]), item("b", 2, y=[4, 5], t="x", l=["w"])])
    assert (
        batch["y"].tolist() == [[0, 0], [4, 5]]
        and batch["y"].dtype == torch.int64
        and batch["y_lengths"].tolist() == [0, 2]
    )
    assert batch["t"] == [None, "x"] and batch["l"] == [[], ["w"]]


def test_read_only_reversed_and_big_endian_arrays_are_read():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    batch = collate([item("a", 1, r=frozen, v=np.arange(3)[::-1], e=np.arange(3, dtype=">i4"))])
    assert (
        batch["r"][0].tolist() == [0, 1, 2]
        and batch["v"][0].tolist() == [2, 1, 0]
        and batch["e"][0].tolist() == [0, 1, 2]
    )


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([], "no items"),
        ([item("a", 1, speaker=1), item("b", 1)], "'b' lacks 'speaker'"),
        ([item("a", 1), item("b", 1, speaker=1)], "'a' lacks 'speaker'"),
        ([item("a", 1, speaker=1), item("b", 1, speaker="x")], "'speaker'.*number.*'a'.*text.*'b'"),
        ([item("a", 1, speaker=1), item("b", 1, speaker=None)], "'speaker'.*missing"),
        ([item("a", 1, y=1), item("b", 1, y=[1])], "'y'.*number.*array"),
        ([item("a", 1, y=2**63)], "'y'"),
        ([item("a", 1, audio_lengths=1)], "'audio_lengths'"),
        ([{"id": "a", "x": [1.0]}], "'audio'"),
        ([{"id": "a", "audio": 1.0}], "'audio'.*'a'"),
        ([item("a", 1, y=np.ones((2, 3))), item("b", 1, y=np.ones(2))], r"'y'.*\(2, 3\).*\(2,\)"),
    ],
)
def test_what_cannot_be_batched_is_an_error_that_names_the_field(items, match):
    with pytest.raises(ValueError, match=match):
        collate(items)


def test_other_key_conventions():
    batch = collate(
        [{"seg_id": "a", "x": np.ones(2)}, {"seg_id": "b", "x": np.ones(3)}], length_key="x", id_key="seg_id"
    )
    assert batch["seg_id"] == ["b", "a"] and batch["x_lengths"].tolist() == [3, 2]


def test_a_variant_with_options_can_be_sent_to_workers():
    function = pickle.loads(pickle.dumps(partial(collate, length_key="x")))
    assert function([{"id": "a", "x": np.ones(2)}])["x_lengths"].tolist() == [2]


class _Rows(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return item(
            f"s{index}", 3 + index, xs=torch.zeros(0), h=torch.full((2,), 0.5, dtype=torch.bfloat16), k=np.int16(index)
        )


def test_batches_made_in_a_worker_are_those_made_here():
    keys = [[0, 2, 1], [5]]
    here = list(torch.utils.data.DataLoader(_Rows(), batch_sampler=keys, collate_fn=collate))
    there = list(torch.utils.data.DataLoader(_Rows(), batch_sampler=keys, collate_fn=collate, num_workers=1))
    for a, b in zip(here, there, strict=True):
        assert a.keys() == b.keys() and b["audio"].is_shared() and b["xs"].shape == (len(a["id"]), 0)
        for key, value in a.items():
            assert (
                torch.equal(value, b[key]) and value.dtype == b[key].dtype
                if torch.is_tensor(value)
                else value == b[key]
            )
