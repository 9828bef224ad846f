"""What a checkpoint holds: all that decides how a training goes on, in one typed object.

On disk it is one flat table of tensors and one of plain JSON. The names there are written and read
here and nowhere else: ``model/``, ``average/`` and ``momentum/`` are the network, ``guard/`` is the
network that a collapse goes back to, ``weights`` the gradient of the parts' weights so far,
``selection/scores`` what later epochs are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.training.checkpoint import newest_checkpoint, write_checkpoint
from enresnet.training.events import Epoch, Progress

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class NetworkState:
    """A network in training: its weights, their average, the optimiser's momenta."""

    model: Tensors = field(default_factory=dict)
    average: Tensors = field(default_factory=dict)  # empty: weights are not averaged
    momentum: Tensors = field(default_factory=dict)  # empty before the first step

    @classmethod
    def of(
        cls, model: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer
    ) -> NetworkState:
        """Return the tensors as they are; they go on changing with the training."""
        momenta = {
            name: optimiser.state[parameter]["momentum_buffer"]
            for name, parameter in model.named_parameters()
            if optimiser.state.get(parameter, {}).get("momentum_buffer") is not None
        }
        return cls(model.state_dict(), {} if average is None else average.state_dict(), momenta)

    def load_into(
        self, model: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer
    ) -> None:
        """Put the tensors back where :meth:`of` found them."""
        model.load_state_dict(self.model)
        if average is not None:
            average.load_state_dict(self.average)
        optimiser.state.clear()
        for name, parameter in model.named_parameters():
            if name in self.momentum:
                # In the weight's own memory format, which fused SGD counts on.
                momentum = torch.empty_like(parameter, requires_grad=False)
                optimiser.state[parameter]["momentum_buffer"] = momentum.copy_(self.momentum[name])

    def copied(self) -> NetworkState:
        """Return the same in memory of its own."""
        parts = (self.model, self.average, self.momentum)
        return NetworkState(
            *({name: tensor.detach().clone() for name, tensor in part.items()} for part in parts)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all of them in one table."""
        return {
            **_prefixed("model", self.model),
            **_prefixed("average", self.average),
            **_prefixed("momentum", self.momentum),
        }

    @classmethod
    def unpack(cls, tensors: Tensors) -> NetworkState:
        """Return what :meth:`tensors` gave as it was."""
        return cls(*(_without_prefix(name, tensors) for name in ("model", "average", "momentum")))


@dataclass(frozen=True)
class GuardState:
    """What the guard against collapse has seen."""

    best: float  # accuracy
    good: NetworkState  # to go back to; empty before the first epoch's end


@dataclass(frozen=True)
class TrainerState:
    """Where the loop stands."""

    network: NetworkState
    guard: GuardState | None  # None: the objective needs none, or it went back already
    part_gradient: Tensor | None  # of the epoch so far, where the parts' weights are learned
    progress: Progress
    natural: float | None  # accuracy of the last batch that was looked at
    precision: dict[str, Any]  # what the precision remembers between steps
    processes: int
    teacher: str | None  # digest of its answers

    def __post_init__(self) -> None:
        if not isinstance(self.natural, float | int | None):
            raise TypeError(f"the natural accuracy is {checks.brief(self.natural)}")

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, under their names on disk."""
        found = self.network.tensors()
        if self.guard is not None:
            found |= _prefixed("guard", self.guard.good.tensors())
        if self.part_gradient is not None:
            found["weights"] = self.part_gradient
        return found

    def facts(self) -> dict[str, Any]:
        """Return the rest as plain JSON, under its names on disk."""
        return {
            "progress": asdict(self.progress),
            "natural": self.natural,
            "guard": None if self.guard is None else self.guard.best,
            "precision": self.precision,
            "processes": self.processes,
            "teacher": self.teacher,
        }

    @classmethod
    def unpack(cls, tensors: Tensors, facts: Mapping[str, Any]) -> TrainerState:
        """Return the state that :meth:`tensors` and :meth:`facts` came from."""
        best = facts["guard"]
        good = NetworkState.unpack(_without_prefix("guard", tensors))
        return cls(
            network=NetworkState.unpack(tensors),
            guard=None if best is None else GuardState(best, good),
            part_gradient=tensors.get("weights"),
            progress=Progress(**facts["progress"]),
            natural=facts["natural"],
            precision=facts["precision"],
            processes=facts["processes"],
            teacher=facts.get("teacher"),
        )


@dataclass(frozen=True)
class Kept:
    """The epoch whose network is the run's best one."""

    epoch: int
    why: str

    def __post_init__(self) -> None:
        if not isinstance(self.why, str):
            raise TypeError(f"why an epoch was kept is {checks.brief(self.why)}")


@dataclass(frozen=True)
class SelectionState:
    """Which epoch's network is kept so far, and what the next ones are compared with."""

    kept: Kept | None = None
    best: int | None = None  # the epoch with the highest accuracy
    scores: Tensor | None = None  # and the score of each validation image there
    validated: int = 0  # epochs

    def __post_init__(self) -> None:
        known = self.best is None or type(self.best) is int
        if not known or type(self.validated) is not int or self.validated < 0:
            found = {"best": self.best, "validated": self.validated}
            raise TypeError(f"the selection is {checks.brief(found)}")

    def tensors(self) -> dict[str, Tensor]:
        """Return the scores, under their name on disk."""
        return {} if self.scores is None else {"selection/scores": self.scores}

    def facts(self) -> dict[str, Any]:
        """Return the rest as plain JSON, under its names on disk."""
        kept = None if self.kept is None else [self.kept.epoch, self.kept.why]
        return {"kept": kept, "best": self.best, "validated": self.validated}

    @classmethod
    def unpack(cls, tensors: Tensors, facts: Mapping[str, Any]) -> SelectionState:
        """Return the state that :meth:`tensors` and :meth:`facts` came from."""
        kept, best = facts["kept"], facts["best"]
        return cls(
            kept=None if kept is None else Kept(*kept),
            best=best,
            scores=None if best is None else tensors["selection/scores"],
            validated=facts["validated"],
        )


@dataclass(frozen=True)
class TrainingState:
    """All that a checkpoint holds."""

    trainer: TrainerState
    epochs: Sequence[Epoch]  # those done
    selection: SelectionState
    options: str  # of the command line, that resuming needs
    run: dict[str, Any] | None  # what decides the run; None: stored by an earlier version
    native_loops: int | None  # processes with the loops in C; None: stored by an earlier version
    saved: str  # when

    def save(self, folder: Path, step: int) -> Path:
        """Write the checkpoint of ``step`` into ``folder``; older ones but the last go."""
        facts = {
            **self.trainer.facts(),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "selection": self.selection.facts(),
            "options": self.options,
            "run": self.run,
            "native_loops": self.native_loops,
            "saved": self.saved,
        }
        return write_checkpoint(folder, step, self.tensors(), facts)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, under their names on disk."""
        return {**self.trainer.tensors(), **self.selection.tensors()}

    @classmethod
    def load(cls, folder: Path) -> tuple[TrainingState, list[Path]] | None:
        """Return the newest whole checkpoint and the damaged ones that are newer; None: none.

        Raises:
            LookupError, TypeError, AttributeError: It is whole, and does not say what it should.
        """
        found = newest_checkpoint(folder)
        if found is None:
            return None
        tensors, facts, damaged = found
        run = facts.get("run")
        state = cls(
            trainer=TrainerState.unpack(tensors, facts),
            epochs=[Epoch(**values) for values in facts["epochs"]],
            selection=SelectionState.unpack(tensors, facts["selection"])
            if "selection" in facts
            else SelectionState(),  # stored by an earlier version
            options=str(facts.get("options", "")),
            run=run if isinstance(run, dict) else None,
            native_loops=facts.get("native_loops"),
            saved=str(facts["saved"]),
        )
        done = state.trainer.progress.epoch
        numbers = [epoch.epoch for epoch in state.epochs]
        if len(numbers) != done or numbers != list(range(1, len(numbers) + 1)):
            raise LookupError(f"it stands after {done} epochs and tells of {len(state.epochs)}")
        return state, damaged


def _prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _without_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return those of :func:`_prefixed`, under their first names."""
    start = f"{prefix}/"
    return {
        name.removeprefix(start): tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }
