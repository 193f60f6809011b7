"""Ranks: who this process is, how a model is spread over all of them, and how they agree.

Everything the ranks tell each other about the course of training goes through small CPU messages (a gloo group of its own where the
tensors travel by nccl), so that agreeing never waits for a GPU.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import repeated_blocks
from hyperion_lite.layers.batch_norm import BatchNorm1d, BatchNorm2d

logger = logging.getLogger(__name__)

DDPType = Literal["ddp", "oss_ddp", "fsdp"]
DDP_TYPES: tuple[DDPType, ...] = ("ddp", "oss_ddp", "fsdp")
_T = TypeVar("_T")


def init_distributed(device: str | torch.device | None = None, timeout_minutes: float = 30.0) -> bool:
    """Join the process group that ``torchrun`` describes in the environment; does nothing outside of it or when already joined.

    Args:
        device: training device; ``None`` for CUDA where it is available. Decides between nccl and gloo.
        timeout_minutes: after this long without the other ranks a collective fails.

    Returns:
        Whether there is a process group now.
    """
    if not dist.is_available():
        return False
    if dist.is_initialized():
        return True
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 1:
        return False
    target = resolve_device(device)
    if target.type == "cuda":
        torch.cuda.set_device(target)
    backend = "nccl" if target.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))
    return True


def local_rank() -> int:
    """Number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def default_device() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank() % torch.cuda.device_count())
    return torch.device("cpu")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device with its number: ``cuda`` is the GPU of this process, ``None`` too where there is one."""
    if device is None:
        return default_device()
    named = torch.device(device)
    return default_device() if named.type == "cuda" and named.index is None and torch.cuda.is_available() else named


class Distribution:
    """The ranks of a training run.

    Args:
        ddp: train over all ranks of the process group; ``None`` when there is more than one.
        ddp_type: ``ddp`` replicates the model; ``oss_ddp`` replicates it and splits the optimizer state; ``fsdp`` splits parameters,
            gradients and optimizer state.
        device: where the model is.
        cpu_offload: with fsdp on a GPU, keep what is split in host memory.

    Raises:
        ConfigError: an unknown ``ddp_type``, or ``ddp`` is false in a process group of several ranks.
    """

    def __init__(self, ddp: bool | None, ddp_type: DDPType, device: torch.device, cpu_offload: bool = False) -> None:
        if ddp_type not in DDP_TYPES:
            raise ConfigError(f"ddp_type must be one of {', '.join(DDP_TYPES)}, got {ddp_type!r}")
        if ddp:
            init_distributed(device)
        self.ddp_type = ddp_type
        self.device = device
        self.cpu_offload = cpu_offload
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.world_size = dist.get_world_size() if joined else 1
        if ddp is False and self.world_size > 1:
            raise ConfigError(
                f"ddp is false, but there is a process group of {self.world_size} ranks, each of which would train a model of its own "
                "on its part of the data; set ddp to true, or start one process"
            )
        self._control: Any = None
        if self.world_size > 1 and dist.get_backend() != "gloo":
            self._control = dist.new_group(backend="gloo")

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that decides, writes and speaks."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are split over the ranks."""
        return self.ddp_type == "fsdp" and self.world_size > 1

    # wrapping

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training. ``model`` itself with fsdp (its parameters are split in place) or one rank.

        Raises:
            ConfigError: no parameter requires gradients.
        """
        if self.world_size == 1:
            return model
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError(
                "no parameter of the model requires gradients, so there is nothing to train; check train_mode"
            )
        if self.is_sharded:
            return self._shard(model)
        wrapper = nn.parallel.DistributedDataParallel
        # buffers are synchronised at the start of every update, see sync_buffers; newer releases of torch have another name for this
        newer = "forward_sync_buffers" in inspect.signature(wrapper.__init__).parameters
        options: dict[str, Any] = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
        return wrapper(model, device_ids=[self.device] if self.device.type == "cuda" else None, **options)

    def release(self, wrapped: nn.Module) -> None:
        """Take a wrapper off its model, so that another one can be put on. The caller drops its references, too.

        The hooks that exchange gradients are on the parameters until the wrapper's reducer is gone; two of them would add up.
        """
        if isinstance(wrapped, nn.parallel.DistributedDataParallel):
            for name in ("logger", "reducer"):
                setattr(wrapped, name, None)
            gc.collect()

    def _shard(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

        with torch.no_grad():
            # every rank keeps its part of its own weights, so all have to begin with those of rank 0
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dtype is not torch.bool:
                    dist.broadcast(tensor.data, src=0)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        offload = CPUOffloadPolicy() if self.cpu_offload and self.device.type != "cpu" else OffloadPolicy()
        for part in repeated_blocks(model):
            fully_shard(part, mesh=mesh, offload_policy=offload)
            if hasattr(part, "embed"):
                # a layer of the head gives the embedding without its activation, by a method of its own
                register_fsdp_forward_method(part, "embed")
        fully_shard(model, mesh=mesh, offload_policy=offload)
        if hasattr(model, "extract_embed"):
            register_fsdp_forward_method(model, "extract_embed")
        return model

    @contextmanager
    def accumulating(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """Backward passes inside do not exchange gradients unless this is the ``last`` one of an update."""
        if self.world_size == 1:
            yield
        elif self.is_sharded:
            wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        else:
            with nullcontext() if last else wrapped.no_sync():  # type: ignore[operator]
                yield

    def sync_buffers(self, model: nn.Module) -> None:
        """Give every rank the persistent buffers of rank 0, those of our batch norms aside: they are equal by construction."""
        if self.world_size == 1:
            return
        buffers = []
        for module in model.modules():
            if not isinstance(module, (BatchNorm1d, BatchNorm2d)):
                skip = module._non_persistent_buffers_set
                buffers += [b for n, b in module._buffers.items() if b is not None and n not in skip and b.numel()]
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in buffers:
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        for dtype, group in by_dtype.items():
            flat = torch.cat([b.detach().reshape(-1) for b in group])
            # gloo and nccl do not know bool
            carried = flat.to(torch.uint8) if dtype is torch.bool else flat
            dist.broadcast(carried, src=0)
            for buffer, part in zip(group, carried.split([b.numel() for b in group]), strict=True):
                buffer.data.copy_(part.view(buffer.shape))

    # agreement

    def gather_ints(self, values: Sequence[int]) -> list[list[int]]:
        """The integers of every rank, in rank order, on every rank."""
        if self.world_size == 1:
            return [list(values)]
        mine = torch.tensor(list(values), dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(rows, mine, group=self._control)
        return [row.tolist() for row in rows]

    def any_of(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on some rank."""
        rows = self.gather_ints([int(flag) for flag in flags])
        return [any(row[i] for row in rows) for i in range(len(flags))]

    def broadcast_object(self, value: _T) -> _T:
        """Rank 0's ``value``, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def all_gather_object(self, value: _T) -> list[_T]:
        """The values of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value, group=self._control)
        return box

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier(group=self._control)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A whole tensor on every rank from one that is split; a collective for split tensors, the tensor itself otherwise."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like_parameter(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """``value`` split and placed as ``parameter`` is; every rank has the whole ``value``."""
    if type(parameter) in (torch.Tensor, torch.nn.Parameter):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor) or isinstance(value, DTensor):
        return value
    # the ranks hold equal values, so nothing has to travel
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
