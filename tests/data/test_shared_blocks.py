"""Memory of batches that is used again: never while anything can reach it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data.collate import collate
from hyperion_lite.data.item_list import ItemList, RowAllocator
from hyperion_lite.data.loader import ResumableLoader, make_loader
from hyperion_lite.data.parcel import Parcel, ParcelCollate
from hyperion_lite.data.rng import item_rng
from hyperion_lite.data.seg_sampler import SegSampler
from hyperion_lite.data.shared_blocks import BlockPool, BlockReceiver, receive
from tests.contracts.sampler_tester import FakeDataset, fake_dataset

LENGTH = 12_000


class Waves(FakeDataset):
    """Waveforms drawn from the key; in odd epochs read into one array, in even ones padded; longer from epoch to epoch."""

    collate = staticmethod(collate)

    def __init__(self, size: int = 48) -> None:
        super().__init__(fake_dataset(size).segments)

    def __getitems__(self, keys: list[Any]) -> list[dict[str, Any]]:
        allocator, items = RowAllocator(len(keys)), []
        for row, key in enumerate(keys):
            rng = item_rng(3, key.epoch, key.segment_id, key.occurrence, "wave")
            length = LENGTH + 2000 * key.epoch + (0 if key.epoch % 2 else int(rng.integers(5000)))
            audio = allocator.row(row, length) if key.epoch % 2 else np.empty(length, np.float32)
            audio[:] = rng.standard_normal(length, dtype=np.float32)
            items.append({"id": key.segment_id, "audio": torch.from_numpy(audio), "pid": os.getpid()})
        return items if allocator.rows is None else ItemList(items, allocator.rows)


class TwoFields(Waves):
    """Two large fields and a view of one of them."""

    @staticmethod
    def collate(items: Any) -> dict[str, Any]:
        batch = collate([{**item, "other": item["audio"][::2].clone()} for item in items])
        return batch | {"tail": batch["audio"][2:], "nested": [batch["audio"][0, :5]], "slanted": batch["audio"].t()}


def loader_of(dataset: Waves, workers: int, **options: Any) -> ResumableLoader:
    return make_loader(dataset, SegSampler(dataset, max_batch_size=4, shuffle=True), workers, **options)


def expected_of(dataset: Waves, epoch: int) -> list[dict[str, Any]]:
    loader = loader_of(dataset, 0)
    loader.set_epoch(epoch)
    return list(loader)


def copies(batches: Any) -> list[np.ndarray]:
    return [batch["audio"].numpy().copy() for batch in batches]


def same(arrays: Any, expected: list[dict[str, Any]]) -> bool:
    audio = [batch["audio"].numpy() for batch in expected]
    return [a.shape for a in arrays] == [a.shape for a in audio] and all(map(np.array_equal, arrays, audio))


def reused(loader: ResumableLoader) -> int:
    """Number of distinct addresses that the batches of an epoch had; the batches are let go of one by one."""
    return len({batch["audio"].data_ptr() for batch in loader})


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "view": lambda x: x[1:, ::3],
    "detached": lambda x: x.detach(),
    "numpy": lambda x: x.numpy(),
    "numpy view": lambda x: x.numpy()[:, 5:].T,
    "memoryview": lambda x: np.asarray(memoryview(x.numpy())),
    "reshaped": lambda x: x.view(torch.int32).flatten(),
    "storage": lambda x: torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()),
    "dlpack": lambda x: torch.from_dlpack(x),
    "numpy of a moved tensor": lambda x: (x.numpy(), x.share_memory_())[0],
    "moved tensor": lambda x: x.share_memory_(),
}


def as_array(held: Any) -> np.ndarray:
    return held.numpy() if isinstance(held, torch.Tensor) else np.asarray(held)


def test_blocks_are_used_again_and_the_batches_are_those_without_workers() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 1)
    for epoch in range(4):
        loader.set_epoch(epoch)
        assert same(copies(loader), expected_of(dataset, epoch))
    loader.set_epoch(1)
    assert len(loader) == 12 and reused(loader) <= 4


@pytest.mark.parametrize(
    ("workers", "start"), [(1, "fork"), pytest.param(2, "fork", marks=pytest.mark.slow), (4, "fork"), (1, "spawn")]
)
def test_what_is_kept_of_any_batches_never_changes(workers: int, start: str) -> None:
    dataset = Waves()
    loader = loader_of(dataset, workers, multiprocessing_context=start)
    draw = random.Random(workers)
    kept: list[tuple[Any, np.ndarray]] = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        seen = []
        for batch in loader:
            audio = batch.pop("audio")
            seen.append(audio.numpy().copy())
            if draw.random() < 0.5:
                held = HOLDERS[draw.choice(list(HOLDERS))](audio)
                kept.append((held, as_array(held).copy()))
            if kept and draw.random() < 0.4:
                kept.pop(draw.randrange(len(kept)))
            if draw.random() < 0.2:
                gc.collect()
            assert all(np.array_equal(as_array(held), content) for held, content in kept)
            held = audio = None
        assert same(seen, expected_of(dataset, epoch))


def test_a_loop_that_keeps_everything_gets_new_memory() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 2)
    loader.set_epoch(1)
    batches = list(loader)
    assert same([batch["audio"].numpy() for batch in batches], expected_of(dataset, 1))
    for number, batch in enumerate(batches):
        batch["audio"].fill_(number)
    assert [batch["audio"].mean().item() for batch in batches] == list(range(len(batches)))


def test_fields_that_share_a_block_and_fields_that_cannot_name_it() -> None:
    dataset = TwoFields()
    loader = loader_of(dataset, 2)
    for epoch in (1, 2, 3):
        loader.set_epoch(epoch)
        for batch, expected in zip(loader, expected_of(dataset, epoch), strict=True):
            for name in ("audio", "other", "tail", "slanted"):
                assert torch.equal(batch[name], expected[name]), name
            assert torch.equal(batch["nested"][0], expected["nested"][0])
            assert batch["tail"].data_ptr() == batch["audio"][2:].data_ptr()
            assert list(batch) == list(expected)


class Caching(Waves):
    """Every batch holds again what the first batch of its worker held."""

    first: dict[int, torch.Tensor] = {}

    @staticmethod
    def collate(items: Any) -> dict[str, Any]:
        batch = collate(items)
        return batch | {"first": Caching.first.setdefault(os.getpid(), batch["audio"])}


def test_memory_that_the_worker_keeps_is_not_used_again() -> None:
    dataset = Caching()
    loader = loader_of(dataset, 1)
    first: torch.Tensor | None = None
    for epoch in (1, 3):
        loader.set_epoch(epoch)
        for batch, expected in zip(loader, expected_of(Waves(), epoch), strict=True):
            first = batch["audio"].clone() if first is None else first
            assert torch.equal(batch["first"], first) and torch.equal(batch["audio"], expected["audio"])


@pytest.mark.parametrize("persistent", [True, False])
def test_iterators_that_are_given_up(persistent: bool) -> None:
    dataset = Waves()
    loader = loader_of(dataset, 2, persistent_workers=persistent)
    held = []
    for attempt in range(3):
        loader.set_epoch(1)
        batches = iter(loader)
        for _ in range(attempt + 1):
            held.append(next(batches)["audio"])
        del batches
    loader.set_epoch(1)
    expected = expected_of(dataset, 1)
    assert same(copies(loader), expected)
    order = [0, 0, 1, 0, 1, 2]
    assert all(torch.equal(kept, expected[index]["audio"]) for kept, index in zip(held, order, strict=True))
    held.clear()
    loader.set_epoch(1)
    assert reused(loader) <= 8


def dies(batches: Any, pid: int) -> bool:
    """Whether the iterator reports its killed worker: torch does when it waits, and wherever the signal finds the process."""
    try:
        os.kill(pid, signal.SIGKILL)
        for _ in batches:
            pass
    except (RuntimeError, OSError, EOFError):
        return True
    return False


def test_workers_that_are_stopped_or_killed() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 1)
    loader.set_epoch(1)
    expected = expected_of(dataset, 1)
    batches = iter(loader)
    kept = next(batches)
    assert dies(batches, int(kept["pid"][0]))
    del batches
    loader.stop_workers()
    gc.collect()
    for _ in range(2):
        loader.set_epoch(1)
        assert same(copies(loader), expected)
        loader.stop_workers()
    assert torch.equal(kept["audio"], expected[0]["audio"])


def test_two_loaders_do_not_mix_their_blocks() -> None:
    dataset = Waves()
    loaders = [loader_of(dataset, 1), loader_of(dataset, 1)]
    for loader, epoch in zip(loaders, (1, 3), strict=True):
        loader.set_epoch(epoch)
    for one, other, first, second in zip(*loaders, expected_of(dataset, 1), expected_of(dataset, 3), strict=True):
        assert torch.equal(one["audio"], first["audio"]) and torch.equal(other["audio"], second["audio"])


def double(inbox: Any, outbox: Any) -> None:
    tensor = inbox.get()
    outbox.put(float(tensor.sum()))
    tensor.fill_(7.0)
    outbox.put("filled")
    inbox.get()
    outbox.put(float(tensor.mean()))


def test_a_batch_that_is_sent_on_moves_out_of_its_block() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 1)
    context = torch.multiprocessing.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    loader.set_epoch(1)
    batches = iter(loader)
    audio = next(batches)["audio"]
    total = float(audio.sum())
    process = context.Process(target=double, args=(inbox, outbox))
    process.start()
    inbox.put(audio)
    assert outbox.get(timeout=60) == pytest.approx(total, abs=1e-2)
    assert outbox.get(timeout=60) == "filled"
    assert audio.mean() == 7.0  # shared, as torch promises
    rest = copies(batches)
    inbox.put(None)
    assert outbox.get(timeout=60) == 7.0
    process.join(60)
    assert same(rest, expected_of(dataset, 1)[1:])


def total_when_told(audio: torch.Tensor, told: Any, answer: Any) -> None:
    told.wait(60)
    answer.send(audio.numpy().tobytes())


def test_a_forked_child_keeps_the_batch_that_it_inherited() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 1)
    context = multiprocessing.get_context("fork")
    loader.set_epoch(1)
    batches = iter(loader)
    batch = next(batches)
    told, (receiver, sender) = context.Event(), context.Pipe(False)
    process = context.Process(target=total_when_told, args=(batch["audio"], told, sender))
    process.start()
    del process, batch
    for _ in batches:
        pass
    loader.set_epoch(3)
    assert same(copies(loader), expected_of(dataset, 3))
    told.set()
    assert receiver.recv() == expected_of(dataset, 1)[0]["audio"].numpy().tobytes()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_neither_mappings_nor_descriptors_grow_over_epochs() -> None:
    dataset = Waves()
    loader = loader_of(dataset, 2)
    counts = []
    for epoch in (5, 1, 5, 1, 5, 1, 5):
        loader.set_epoch(epoch)
        for _ in loader:
            pass
        with open("/proc/self/maps") as maps:
            mappings = sum("/torch_" in line for line in maps)
        counts.append((mappings, len(os.listdir("/proc/self/fd"))))
    # two workers of four blocks each, and a descriptor for each block: how many are in use depends on who is faster
    assert all(mappings <= 2 * 4 for mappings, _ in counts)
    assert len({descriptors - mappings for mappings, descriptors in counts[1:]}) == 1


# --- the parts, in one process


def pair(depth: int = 3) -> tuple[BlockPool, BlockReceiver]:
    receiver = BlockReceiver()
    return BlockPool(receiver.token, depth), receiver


def send(pool: BlockPool, receiver: BlockReceiver, size: int, value: int) -> torch.Tensor | None:
    made = pool.take(size)
    if made is None:
        assert pool.send({}) is None
        return None
    made.fill_(value)
    delivery = pool.send({"x": made})
    assert delivery is not None and delivery.receiver == receiver.token
    opened = receive(delivery)
    assert opened is not None
    return opened["x"]


def is_free(pool: BlockPool) -> bool:
    """Whether there is a block for a batch."""
    taken = pool.take(4000)
    pool.send({})
    return taken is not None


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_block_is_free_when_the_last_that_can_reach_it_is_gone(kind: str) -> None:
    pool, receiver = pair(depth=1)
    for value in range(3):
        tensor = send(pool, receiver, 4000, value)
        assert tensor is not None
        held = HOLDERS[kind](tensor.view(100, 40))
        content = as_array(held).copy()
        del tensor
        receiver.release()
        if kind == "moved tensor":
            assert held.is_shared()
        else:
            assert not is_free(pool)
        assert np.array_equal(as_array(held), content)
        del held
        receiver.release()
        assert is_free(pool)


def test_a_tensor_saved_for_backward_keeps_its_block() -> None:
    pool, receiver = pair(depth=1)
    tensor = send(pool, receiver, 4000, 2)
    assert tensor is not None
    weight = torch.zeros(1000, requires_grad=True)
    loss = (weight * tensor.view(torch.float32)).sum()
    del tensor
    receiver.release()
    assert not is_free(pool)
    loss.backward()
    del loss
    receiver.release()
    assert is_free(pool)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["send", "drop", "lose", "release", "fork"]), st.integers(1, 40)), max_size=40)
)
def test_any_order_of_sending_and_dropping(steps: list[tuple[str, int]]) -> None:
    pool, receiver = pair()
    alive: list[tuple[torch.Tensor, int]] = []
    for number, (step, size) in enumerate(steps):
        if step == "send":
            tensor = send(pool, receiver, 1000 * size, number)
            if tensor is not None:
                assert tensor.shape == (1000 * size,)
                alive.append((tensor, number))
        elif step == "drop" and alive:
            alive.pop(size % len(alive))
        elif step == "lose":
            made = pool.take(1000 * size)
            if made is not None:
                made.fill_(255)
                pool.send({"x": made} if size % 2 else {})
                del made
        elif step == "release":
            receiver.release()
        elif step == "fork":
            receiver.give_up()
        assert all(bool((tensor == value % 256).all()) for tensor, value in alive)


def test_a_block_leaves_once_each_time_that_it_was_taken() -> None:
    pool, _ = pair(depth=1)
    made = pool.take(4000)
    assert made is not None and pool.send({"x": made[:100]}) is not None
    assert pool.send({"x": made}) is None and pool.send({"x": made[:100]}) is None


def test_a_batch_that_was_alive_at_a_fork_keeps_its_block_for_ever() -> None:
    pool, receiver = pair(depth=1)
    tensor = send(pool, receiver, 4000, 1)
    assert tensor is not None
    receiver.give_up()
    view = tensor.numpy()
    tensor.share_memory_()
    for value in (2, 3):
        assert send(pool, receiver, 4000, value) is not None  # in another block, which is used again
        receiver.release()
        assert (view == 1).all()
    assert len(receiver._memory) == 1


def test_blocks_grow_and_the_receiver_forgets_those_replaced() -> None:
    pool, receiver = pair(depth=2)
    for size in range(1000, 60_000, 3000):
        assert send(pool, receiver, size, 1) is not None
        receiver.release()
    assert len(receiver._memory) <= 3


def test_a_pool_grows_with_the_number_of_fields() -> None:
    pool, _ = pair(depth=2)
    first = [pool.take(1000) for _ in range(3)]
    pool.send({})
    assert all(tensor is not None for tensor in first + [pool.take(1000) for _ in range(3)])
    assert pool.take(1000) is not None  # a batch of four, so eight blocks


def test_pinning_copies_and_frees_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperion_lite.data.parcel.pin_memory", lambda batch: {k: v.clone() for k, v in batch.items()})
    pool, receiver = pair(depth=1)
    parcels: list[Parcel] = []
    for value in range(3):
        made = pool.take(100_000)
        assert made is not None
        made.fill_(value)
        parcel = Parcel({"x": made, "y": torch.tensor(value)}, pool)
        del made
        state = dict(parcel.__dict__)
        del parcel

        def pin(state: dict[str, Any] = state) -> None:
            arrived = Parcel.__new__(Parcel)
            arrived.__setstate__(state)
            parcels.append(arrived.pin_memory())

        thread = threading.Thread(target=pin)
        thread.start()
        thread.join()
        receiver.release()
    assert [parcel.open()["x"].unique().tolist() for parcel in parcels] == [[0], [1], [2]]
    assert [parcel.open()["y"].item() for parcel in parcels] == [0, 1, 2]


def test_a_batch_of_a_loader_that_is_gone_says_so() -> None:
    pool, receiver = pair()
    made = pool.take(100_000)
    parcel = Parcel({"x": made}, pool)
    state = dict(parcel.__dict__)
    del receiver
    gc.collect()
    arrived = Parcel.__new__(Parcel)
    arrived.__setstate__(state)
    with pytest.raises(RuntimeError, match="gone"):
        arrived.open()


def test_without_a_loader_there_is_no_pool() -> None:
    parcel = ParcelCollate(collate)([{"id": "a", "audio": torch.zeros(100_000)}])
    assert parcel.batch["audio"] is not None and parcel.open()["audio"].shape == (1, 100_000)


def plain_batches(dataset: Waves) -> Iterator[Any]:
    sampler = SegSampler(dataset, max_batch_size=4, shuffle=True)
    return iter(torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=1, collate_fn=collate))


def test_batches_of_a_plain_data_loader_are_shared_as_ever() -> None:
    dataset = Waves()
    batches = list(plain_batches(dataset))
    assert all(batch["audio"].is_shared() for batch in batches)
    assert same([batch["audio"].numpy() for batch in batches], expected_of(dataset, 0))
