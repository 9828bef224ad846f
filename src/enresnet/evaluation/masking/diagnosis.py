"""Signs that a defence hides its gradient rather than being robust (Sec. 4.4).

After Athalye, Carlini and Wagner (2018) and Carlini et al. (2019): where gradients tell the truth,
many steps beat one, seeing the model beats not seeing it, no model survives an unbounded attacker,
more effort stops paying, and random search finds nothing that gradients missed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from enresnet.attacks import FGSM
from enresnet.attacks.gradient import NoGradientError
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.common import checks
from enresnet.common.progress import progress_bar
from enresnet.common.tables import as_html, as_text
from enresnet.common.text import brief
from enresnet.data import Images
from enresnet.evaluation.accuracy import Accuracy
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.masking import checks as answers
from enresnet.evaluation.masking.checks import MaskingCheck
from enresnet.evaluation.masking.measurements import Measurements
from enresnet.evaluation.matrix import OWN
from enresnet.evaluation.misuse import suspicions, warn_of_chance
from enresnet.evaluation.options import EvaluationOptions
from enresnet.evaluation.rows import Row
from enresnet.evaluation.session import Session
from enresnet.models.interface import Model

STEPS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Point:
    """An accuracy on a curve.

    Attributes:
        at: The epsilon, or the number of steps.
        accuracy: Accuracy there.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    at: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What speaks for and against a model's gradients: checks, and two curves.

    It prints as the table of ``enresnet diagnose``, also in a notebook.

    Attributes:
        checks: All checks, in the order in which they were made.
        against_epsilon: Accuracy under IFGSM-20 by epsilon, each with ``at``, ``accuracy``, ``low``
            and ``high``.
        against_steps: Accuracy under IFGSM by the number of steps, alike; one step is FGSM.
        images: How many images were used.
        epsilon: The largest change of a pixel.
        eot: Draws of the noise averaged in every gradient.
        draws: Predictions that every image was scored over.
        seed: What fixed the attacks and the noise.
        data: Digest of the images.

    Example::

        from torch import nn

        linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
        found = enresnet.diagnose(linear, (images, labels), queries=2)
        print(found, len(found.warnings))
    """

    checks: tuple[MaskingCheck, ...]
    against_epsilon: tuple[Point, ...]
    against_steps: tuple[Point, ...]
    images: int
    epsilon: float
    eot: int
    draws: int
    seed: int | None
    data: str

    @property
    def warnings(self) -> list[MaskingCheck]:
        """The checks that warn."""
        return [check for check in self.checks if check.verdict == "warn"]

    @property
    def undecided(self) -> list[MaskingCheck]:
        """The checks that could not have warned, as on a few images, and so say nothing."""
        return [check for check in self.checks if check.verdict == "undecided"]

    @property
    def caption(self) -> str:
        """How strong the attacks were."""
        return f"epsilon = {brief(self.epsilon)}, EOT over {self.eot}."

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each check, for a data frame.

        Returns:
            Rows with ``check``, ``figure``, ``verdict``, ``meaning`` and ``reason``; see
            :class:`MaskingCheck`.
        """
        return [
            {
                "check": c.name,
                "figure": c.figure,
                "verdict": c.verdict,
                "meaning": c.meaning,
                "reason": c.reason,
            }
            for c in self.checks
        ]

    def table(self) -> list[Row]:
        """Return each check with its figure and verdict, as rows of words.

        Where it is undecided, the figure is followed by the reason.
        """
        return [{"check": c.name, "figure": c.told, "verdict": c.verdict} for c in self.checks]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Diagnosis:
        """Return what :meth:`to_json` stored; other keys are left out."""
        known = {name: values[name] for name in cls.__dataclass_fields__}
        curves = {
            name: tuple(Point(**point) for point in values[name])
            for name in ("against_epsilon", "against_steps")
        }
        found = tuple(MaskingCheck(**check) for check in values["checks"])
        return cls(**known | curves | {"checks": found})

    def __str__(self) -> str:
        text = as_text(self.table(), caption=f"{self.images} images, {self.caption}")
        return "\n".join([text, *(check.warning for check in self.warnings)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption = " ".join([self.caption, *(check.warning for check in self.warnings)])
        return as_html(self.table(), caption=f"{self.images} images, {caption}")


def diagnose(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    *,
    epsilon: float | None = None,
    eot: int | None = None,
    draws: int = 10,
    limit: int | None = None,
    batch_size: int = 128,
    queries: int = 300,
    sources: Mapping[str, Model] | None = None,
    naturally_trained: Model | None = None,
    seed: int = 0,
    journal: str | os.PathLike[str] | Journals | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Return what speaks for and against the gradients of ``model``.

    Args:
        model: From images in [0, 1], N x C x H x W, to logits N x classes.
        dataset: As for :func:`~enresnet.evaluation.evaluate`.
        epsilon: Largest change of a pixel; 8/255 by default.
        eot: Draws of the noise averaged in every gradient; None leaves them to the model: 1 for one
            that always answers the same, else 5.
        draws: Predictions that every image is scored over; 10 by default, 1 for a deterministic
            model.
        limit: Use only the first so many images, two at least; None, the default, for all. Checks
            that compare two attacks need six that are right when clean.
        batch_size: Images in one call of the model; 128 by default.
        queries: Steps of the search without gradients; 300 by default.
        sources: Other models, by name, whose adversarial images are tried on it; by default none.
        naturally_trained: The same network trained without attacks, which no honest attack leaves
            standing; by default that check is skipped.
        seed: Fixes the attacks and the noise; 0 by default.
        journal: A folder that keeps results as they come; the same call goes on from there.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Shape:
        - dataset, as a pair: images N x C x H x W, labels N

    Returns:
        All checks, those that warn under ``.warnings``, those that so few images cannot decide
        under ``.undecided``, and two curves. It prints as a table.

    Raises:
        ValueError, TypeError: An argument is not what it should be, or the model does not fit the
            data.
        FileExistsError: Another process is using the journal.

    Example::

        from torch import nn

        linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
        print(enresnet.diagnose(linear, (images, labels), limit=2, queries=2))
    """
    book = journal if isinstance(journal, Journals | None) else Journals(journal)
    options = EvaluationOptions(draws, batch_size, limit, seed, book, progress=progress)
    session = Session.open(model, dataset, options)
    with options.resumable():
        return diagnose_session(
            session,
            epsilon=epsilon,
            eot=eot,
            queries=queries,
            sources=sources,
            naturally_trained=naturally_trained,
        )


def diagnose_session(
    session: Session,
    *,
    epsilon: float | None = None,
    eot: int | None = None,
    queries: int = 300,
    sources: Mapping[str, Model] | None = None,
    naturally_trained: Model | None = None,
) -> Diagnosis:
    """Return what speaks for and against the gradients of a session's model; see `diagnose`."""
    radius = check_epsilon(epsilon, "linf")
    if eot is not None:
        checks.integer("eot", eot, low=1)
    if session.options.limit is not None:
        checks.integer("limit", session.options.limit, low=2)
    eot = session.usual_eot() if eot is None else eot
    model, data = session.targets[OWN], session.data
    measured = Measurements(session, radius, eot)
    sources = sources or {}
    odd = [MaskingCheck(s.name, s.figure, "warn", s.remedy) for s in suspicions(model, data)]
    stages = 5 + len(STEPS) + len(_radii(radius)) + len(sources) + (naturally_trained is not None)
    with progress_bar("diagnosing", stages, show=session.options.progress) as advance:
        measured.advance = advance
        try:
            one = measured.under(FGSM(epsilon=radius, eot=eot))
        except NoGradientError:
            return _of(measured, [*odd, answers.no_gradient(measured, queries)], {}, {})
        warn_of_chance(OWN, measured.natural, data)
        many = measured.iterative(20)
        steps = {number: one if number == 1 else measured.iterative(number) for number in STEPS}
        curve = {size: measured.iterative(20, size) for size in _radii(radius)}
        found = [
            *odd,
            answers.many_steps(measured, one, many),
            *answers.black_box(measured, many, queries),
            *(answers.blind(measured, name, source, many) for name, source in sources.items()),
            *([] if sources else [answers.SKIPPED_BLIND]),
            answers.unbounded(measured, curve),
            answers.effort(
                "more steps stop helping",
                "100 steps rather than 20",
                measured.natural,
                many,
                steps[100],
            ),
            *answers.more_of_the_rest(measured, eot),
            *answers.slope(measured),
            answers.SKIPPED_NATURALLY_TRAINED
            if naturally_trained is None
            else answers.natural_training(measured, naturally_trained),
        ]
    return _of(measured, found, curve, steps)


def _radii(epsilon: float) -> Sequence[float]:
    """Return radii from a quarter of epsilon on, doubling, up to all of the range."""
    sizes = [epsilon * 2.0**power for power in range(-2, 12)]
    return [size for size in sizes if size < 1] + [1.0]


def _point(at: float, value: Accuracy) -> Point:
    return Point(float(at), value.accuracy, *value.interval)


def _of(
    measured: Measurements,
    found: Sequence[MaskingCheck],
    curve: Mapping[float, Accuracy],
    steps: Mapping[int, Accuracy],
) -> Diagnosis:
    return Diagnosis(
        checks=tuple(found),
        against_epsilon=tuple(_point(size, value) for size, value in curve.items()),
        against_steps=tuple(_point(number, value) for number, value in steps.items()),
        images=len(measured.data),
        epsilon=measured.epsilon,
        eot=measured.eot,
        draws=measured.options.draws,
        seed=measured.options.seed,
        data=measured.data.fingerprint(),
    )
