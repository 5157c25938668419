"""What a worker does where ranks have GPUs, watched on a machine without.

PyTorch is made to say that there are two GPUs, and the calls that choose a device are recorded instead of made. The
process group is a real one, over gloo. The job ends when training begins.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from ..base import Evidence


class _Far(Exception):
    """The worker has come far enough."""


def _gpu(device: Any) -> str:
    """Return how a device is written, whether it comes as a number, a name or a `torch.device`."""
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return str(place)


def _job(model: type[nn.Linear], stop: Callable[..., None], folder: str) -> SimpleNamespace:
    """Return a job whose training does nothing but `stop`."""
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    return SimpleNamespace(
        make_model=lambda: model(2, 2),
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train=rows,
        test=rows,
        epochs=1,
        micro_batch=2,
        accumulate=1,
        seed=0,
        checkpoint=str(Path(folder) / "none.pt"),
        train_epoch=stop,
        evaluate=stop,
    )


@contextlib.contextmanager
def patched(worker: Callable[..., Any], fakes: Mapping[tuple[ModuleType, str], Any]) -> Iterator[None]:
    """Put `fakes` in the place of functions of modules, also where `worker` has imported them by name."""
    with contextlib.ExitStack() as stack:
        for (module, name), fake in fakes.items():
            own = getattr(worker, "__globals__", {})  # `from torch.distributed import init_process_group`
            imported = {key: fake for key, value in own.items() if value is getattr(module, name)}
            stack.enter_context(mock.patch.dict(own, imported))
            stack.enter_context(mock.patch.object(module, name, fake))
        yield


def opened_on_gpus(worker: Callable[..., Any], folder: str, local_ranks: int) -> Evidence:
    """Run `worker` on each of two ranks up to the training; return how it opened the group and chose devices.

    The two are said to be of `local_ranks` ranks of a machine, and not to be numbered there as in the job.
    """
    rank = int(os.environ["RANK"])
    seen: Evidence = {"opened": False, "backend": None, "device_id": None, "current": "cuda:0", "moved": "cpu"}
    init = dist.init_process_group

    def open_group(backend: str | None = None, *args: Any, device_id: Any = None, **options: Any) -> None:
        seen.update(opened=True, backend=backend and str(backend), at_opening=seen["current"])
        seen["device_id"] = None if device_id is None else _gpu(device_id)
        store = dist.FileStore(str(Path(folder) / f"on_gpus_{local_ranks}"), 2)
        init("gloo", store=store, rank=rank, world_size=2)

    def choose(device: Any) -> None:
        seen["current"] = _gpu(device)

    class Model(nn.Linear):
        """A model that goes nowhere."""

        def to(self, *args: Any, **kwargs: Any) -> nn.Module:
            devices = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.device | str | int)]
            seen["moved"] = _gpu(devices[0]) if devices else seen["moved"]
            return self

        def cuda(self, device: Any = None) -> nn.Module:
            return self.to(seen["current"] if device is None else device)

    @contextlib.contextmanager
    def here(device: Any) -> Iterator[None]:
        choose(device)
        yield

    def stop(*args: Any) -> None:
        raise _Far

    job = _job(Model, stop, folder)
    fakes = {
        (torch.cuda, "is_available"): lambda: True,
        (torch.cuda, "device_count"): lambda: 2,
        (torch.cuda, "current_device"): lambda: torch.device(seen["current"]).index,
        (torch.cuda, "set_device"): choose,
        (torch.cuda, "device"): here,
        (torch.accelerator, "set_device_index"): choose,
        (dist, "is_nccl_available"): lambda: True,
        (dist, "init_process_group"): open_group,
    }
    environment = dict(os.environ) | {"LOCAL_RANK": str(1 - rank), "LOCAL_WORLD_SIZE": str(local_ranks)}
    with patched(worker, fakes), mock.patch.dict(os.environ, environment):
        try:
            worker(job)
            seen["ended"] = None
        except NotImplementedError:
            raise
        except Exception as error:  # where there is no GPU, other calls may raise: what has been seen until then counts
            seen["ended"] = type(error).__name__
    if dist.is_initialized():
        dist.destroy_process_group()
    return seen
