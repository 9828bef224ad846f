"""The result of one piece of work, as the journal stores it, and of all pieces together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from enresnet.evaluation.journal import packed, unpacked
from enresnet.evaluation.scoring import Scored


@dataclass(frozen=True)
class Result:
    """What a piece of work found."""

    scored: dict[str, Scored]  # by target
    seconds: float
    claimed: Tensor | None = None
    gradients: int = 0
    evaluations: int = 0
    norms: Tensor | None = None  # of the perturbations, where the attack minimises them

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "seconds": self.seconds,
            "gradients": self.gradients,
            "evaluations": self.evaluations,
            "claimed": None if self.claimed is None else packed(self.claimed),
            **({} if self.norms is None else {"norms": self.norms.tolist()}),
            "scored": {
                name: {
                    "right": packed(scored.right),
                    "averaged": packed(scored.averaged),
                    "without": packed(scored.without),
                    "confidence": scored.confidence.tolist(),
                    "seconds": scored.seconds,
                    "bad": scored.bad,
                }
                for name, scored in self.scored.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Return what :meth:`to_json` stored."""
        return cls(
            scored={
                name: Scored(
                    unpacked(scored["right"]),
                    unpacked(scored["averaged"]),
                    unpacked(scored["without"]),
                    torch.tensor(scored["confidence"]),
                    scored["seconds"],
                    scored["bad"],
                )
                for name, scored in values["scored"].items()
            },
            seconds=values["seconds"],
            claimed=None if values["claimed"] is None else unpacked(values["claimed"]),
            gradients=values["gradients"],
            evaluations=values["evaluations"],
            norms=None if "norms" not in values else _float64(values["norms"]),
        )


class Gathered:
    """The results of one attack of one source on all images, filled in as they come.

    The tensors are allocated whole before the work starts. Kept piece by piece, a few bytes of
    every batch would lie between the large tensors of the next ones: the C library cannot close
    such gaps, and the process would grow with the number of batches.
    """

    def __init__(self, images: int, draws: Mapping[str, int]) -> None:
        self._whole = {}
        for name, number in draws.items():
            right, averaged, without = torch.zeros(3, images, number, dtype=torch.bool)
            self._whole[name] = Scored(right, averaged, without, torch.zeros(images))
        self._claims = torch.full((images,), -1, dtype=torch.int8)  # below 0: nothing was claimed
        self._norms = torch.full((images,), torch.nan, dtype=torch.float64)
        self._seconds, self._bad = dict.fromkeys(draws, 0.0), dict.fromkeys(draws, 0)
        self._spent = [0.0, 0.0, 0.0]  # seconds, gradients, evaluations

    def put(self, rows: slice, result: Result) -> None:
        """Take the result of a piece, on the images ``rows``."""
        for name, part in result.scored.items():
            whole = self._whole[name]
            whole.right[rows], whole.averaged[rows] = part.right, part.averaged
            whole.without[rows], whole.confidence[rows] = part.without, part.confidence
            self._seconds[name] += part.seconds
            self._bad[name] += part.bad
        if result.claimed is not None:
            self._claims[rows] = result.claimed.to(torch.int8)
        if result.norms is not None:
            self._norms[rows] = result.norms
        for place, amount in enumerate((result.seconds, result.gradients, result.evaluations)):
            self._spent[place] += amount

    def result(self) -> Result:
        """Return all pieces as one."""
        seconds, gradients, evaluations = self._spent
        known = self._claims >= 0
        return Result(
            scored={
                name: replace(whole, seconds=self._seconds[name], bad=self._bad[name])
                for name, whole in self._whole.items()
            },
            seconds=seconds,
            claimed=self._claims[known].bool() if known.any() else None,
            gradients=int(gradients),
            evaluations=int(evaluations),
            norms=None if self._norms.isnan().any() else self._norms,
        )


def _float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
