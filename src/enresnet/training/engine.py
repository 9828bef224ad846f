"""Where training runs: device, precision and processes, through Lightning Fabric.

``batch_size`` counts the images of one process: two processes make a step of twice as many. The
attack needs no communication; a step has two exchanges, of the gradients (by DDP) and of one short
vector with the loss, the counts and BatchNorm's running statistics.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.attacks.precision import fast_bfloat16
from enresnet.common import checks
from enresnet.common.precision import TrainingPrecision, training_precision
from enresnet.evaluation import Shard
from enresnet.training.objectives import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Accelerator = Literal["auto", "cpu", "cuda", "gpu", "mps"]
"""What kind of device computes; ``"cuda"`` is another name for ``"gpu"``."""

ACCELERATORS: tuple[Accelerator, ...] = get_args(Accelerator)

FIRST = "ENRESNET_FIRST_PROCESS"  # tells those it starts its number
OBSERVER = "child-process-observer"  # the launcher's thread that kills all once one has ended
GRACE = 10.0  # seconds in which the training's own error, if it comes, says more


class LostProcessError(ConnectionError):
    """Another process that shares the work has ended."""


class Engine:
    """Where a training runs: device, precision, and the processes that share the work.

    With ``devices`` above 1 the first process starts the others by running its own command again;
    under torchrun and SLURM they exist already.

    Args:
        accelerator: ``"cpu"``, ``"gpu"`` (or ``"cuda"``), ``"mps"``, or ``"auto"`` (the default),
            the fastest that torch finds.
        devices: The number of processes on this machine, one device each; 1 by default. A list
            gives the numbers of the devices.
        nodes: The number of machines; 1 by default.
        precision: ``"32"`` (float32, the default), ``"bf16"`` (bfloat16 autocast), ``"16"``
            (float16 autocast with a scaled loss, on a GPU), or ``"auto"``: ``"bf16"`` where the
            hardware computes in it, else ``"32"``.
        sync_batchnorm: Whether BatchNorm takes its statistics over the batches of all processes;
            False by default. GPUs only.

    Attributes:
        precision: The precision in use, never ``"auto"``.
        automatic: Whether it was chosen here.
        note: Why it is not the one that the hardware suggests; "" if it is.
        processes: The number of processes on all machines.

    Raises:
        TypeError: ``devices`` or ``nodes`` is not an integer.
        ValueError: An argument is not one of its choices, or the hardware is not there.

    Example::

        from enresnet.training import Engine

        engine = Engine(accelerator="cpu", precision="32")
        print(engine.device, engine.processes)  # cpu 1
    """

    def __init__(
        self,
        *,
        accelerator: Accelerator = "auto",
        devices: int | list[int] = 1,
        nodes: int = 1,
        precision: TrainingPrecision = "32",
        sync_batchnorm: bool = False,
    ) -> None:
        checks.choice("accelerator", accelerator, ACCELERATORS)
        precision = training_precision(precision)
        count = devices if isinstance(devices, int) else len(devices)
        self.local = checks.integer("devices", count, low=1)
        self.processes = self.local * checks.integer("nodes", nodes, low=1)
        self.options = "".join(
            f" --{name} {value}"
            for name, value, usual in (
                ("devices", count, 1),
                ("nodes", nodes, 1),
                ("accelerator", accelerator, "auto"),
            )
            if value != usual
        )
        self.sync_batchnorm = sync_batchnorm
        if precision == "16" and not _has_gpu(accelerator):
            raise ValueError("precision 16 needs a GPU; on a CPU take bf16")
        if sync_batchnorm and not _has_gpu(accelerator):
            raise ValueError(
                "sync_batchnorm needs GPUs: on CPUs torch has only statistics of one process each"
            )
        self._in = partial(_fabric, accelerator, devices, nodes, self.processes)
        self._fabric = self._in(precision)
        self.precision: TrainingPrecision = precision
        self.automatic = precision == "auto"
        self.note = ""
        if self.automatic:
            self.precision = "bf16" if fast_bfloat16(self._fabric.device) else "32"
            self._fabric = self._in(self.precision)

    def fall_back(self, why: str) -> None:
        """Compute in float32 after all; before :meth:`launch`, and if the precision is automatic.

        Args:
            why: The reason, for the note on the first epoch.
        """
        self.precision, self.note = "32", f"precision is 32: {why}"
        self._fabric = self._in("32")

    @classmethod
    def for_model(cls, model: nn.Module) -> Engine:
        """Return an engine of one process where the model's parameters are."""
        device = next(model.parameters()).device
        kind = checks.choice("accelerator", device.type, ACCELERATORS)
        return cls(accelerator=kind, devices=1 if device.index is None else [device.index])

    def launch(self) -> None:
        """Start the other processes, if there are more than one; each continues from here."""
        if self.processes > 1 and _started_by_the_first():
            # By its number, not by who our parent is now: it may be gone already.
            first = int(os.environ.get(FIRST, os.getppid()))
            threading.Thread(target=_end_with, args=(first,), daemon=True).start()
        elif self.processes > 1:
            os.environ[FIRST] = str(os.getpid())
        self._fabric.launch()
        _give_time_to_speak()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self._fabric.device

    @property
    def rank(self) -> int:
        """The number of this process; 0 writes files and prints."""
        return self._fabric.global_rank

    @property
    def shard(self) -> Shard:
        """Which of the processes this is, for evaluations that share their work."""
        return Shard(self.rank, self.processes, self.wait, self.counted)

    def share_of(self, count: int) -> slice:
        """Return the rows of ``count`` images that this process takes."""
        first, after = (count * number // self.processes for number in (self.rank, self.rank + 1))
        return slice(first, after)

    def prepare(
        self, module: nn.Module, optimiser: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return both wrapped: they compute in the precision and exchange gradients."""
        wrapped, stepper = self._fabric.setup(module, optimiser)
        return wrapped, stepper

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context in which attacks call the model."""
        context: AbstractContextManager[None] = self._fabric.autocast()
        return context

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, scaled if the precision needs it."""
        self._fabric.backward(loss)

    def sum_over_processes(self, values: Tensor) -> Tensor:
        """Return the sum of all processes' values."""
        if self.processes == 1:
            return values
        with self._telling_of_the_lost():
            total = self._fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def counted(self, answers: list[bool]) -> list[int]:
        """Return in how many processes each of several answers is True."""
        total = self.sum_over_processes(torch.tensor(answers, dtype=torch.float32))
        return [int(number) for number in total.tolist()]

    def wait(self) -> None:
        """Wait until every process has come to this call.

        Raises:
            LostProcessError: One of them has ended.
        """
        with self._telling_of_the_lost():
            self._fabric.barrier()

    def precision_state(self) -> dict[str, Any]:
        """Return the state of the precision between steps (the loss scale), as plain JSON."""
        return dict(self._fabric.strategy.precision.state_dict())

    def load_precision_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`precision_state` returned."""
        self._fabric.strategy.precision.load_state_dict(state)

    @contextmanager
    def _telling_of_the_lost(self) -> Iterator[None]:
        """Raise a LostProcessError where the backend says in its own words that a peer is gone."""
        try:
            yield
        except RuntimeError as error:
            if not self.is_lost(error):
                raise
            raise LostProcessError(
                f"another process that shares the work ended, so process {self.rank} stops too; "
                "the same command goes on from what is stored"
            ) from error

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that another process has ended."""
        words = ("connection", "peer", "nccl", "gloo", "timed out", "socket")
        return self.processes > 1 and any(word in str(error).lower() for word in words)


class CraftedBatch:
    """What the loss needs. Not a tuple: Fabric would round the images of one to its precision."""

    def __init__(self, images: Tensor, crafted: Tensor, labels: Tensor) -> None:
        self.images, self.crafted, self.labels = images, crafted, labels


class ObjectiveLoss(nn.Module):
    """The objective's loss as a module for DDP: one forward pass, however many it makes."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: CraftedBatch) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of the crafted images."""
        return self.objective.loss(self.model, batch.images, batch.crafted, batch.labels)


def _started_by_the_first() -> bool:
    names = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID")
    return os.environ.get("LOCAL_RANK", "0") != "0" and not any(n in os.environ for n in names)


def _end_with(parent: int) -> None:
    """End this process when the first has ended, even if it waits for it."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(GRACE)
    print("enresnet: the first process of this training is gone", file=sys.stderr, flush=True)
    os._exit(1)


def _give_time_to_speak() -> None:
    """Let the launcher wait before it kills this process because another has ended.

    This one notices by itself, says how to go on, and leaves; the launcher is for those that hang.
    """
    for thread in threading.enumerate():
        kill = getattr(thread, "_terminate_all", None)
        if thread.name == OBSERVER and callable(kill):

            def later(kill: Callable[[], None] = kill) -> None:
                time.sleep(GRACE)
                kill()

            setattr(thread, "_terminate_all", later)  # noqa: B010


def _has_gpu(accelerator: Accelerator) -> bool:
    return accelerator != "cpu" and torch.cuda.is_available()


def _fabric(
    accelerator: Accelerator,
    devices: int | list[int],
    nodes: int,
    processes: int,
    precision: TrainingPrecision,
) -> Fabric:
    # Imported here: it takes longer than all of ours.
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Its launcher logs that it ends the other processes when one has ended: keep that message.
    logging.getLogger("lightning_fabric.strategies.launchers").setLevel(logging.INFO)

    # Statistics are averaged over the processes after every step, so DDP need not send its own.
    strategy: Any = DDPStrategy(**_quiet_buffers()) if processes > 1 else "auto"
    kind = "gpu" if accelerator == "cuda" else accelerator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about SLURM's tools being there but not used
        try:
            return Fabric(
                accelerator=kind,
                devices=devices,
                num_nodes=nodes,
                strategy=strategy,
                precision=_FABRIC_NAMES[precision],
            )
        except (RuntimeError, ValueError) as error:  # no such device
            raise ValueError(
                f"accelerator={accelerator}, devices={devices} is not available here: {error}"
            ) from error


def _quiet_buffers() -> dict[str, Any]:
    """Return DDP's option, under the name this torch has for it."""
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    new = "forward_sync_buffers"
    return {new if new in known else "broadcast_buffers": False}


_FABRIC_NAMES: dict[TrainingPrecision, Any] = {
    "auto": "32-true",  # until the device is known
    "32": "32-true",
    "bf16": "bf16-mixed",
    "16": "16-mixed",
}
