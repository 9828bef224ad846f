r"""Accuracy against epsilon: how much of it is left in balls of growing radius.

An attack with an epsilon is run once for each radius. An attack that looks for the smallest
perturbation is run once: at radius r, image i counts with its attacked version if that is within r,
else with itself,

.. math:: A(r) = \frac{1}{N} \sum_i \bigl[\|\delta_i\| \le r\bigr]\, s(x_i + \delta_i)
          + \bigl[\|\delta_i\| > r\bigr]\, s(x_i)

with s the share of draws in which the model is right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from enresnet.attacks import DEFAULT_EPSILON, Attack, attack_at, create_attack
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.common.randomness import named_generator
from enresnet.common.tables import as_html, as_text
from enresnet.common.text import brief
from enresnet.data import Images
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.options import EvaluationOptions
from enresnet.evaluation.rows import Row, with_interval
from enresnet.evaluation.session import Session
from enresnet.evaluation.statistics import accuracy_interval
from enresnet.models.interface import Model

RADII = 11  # from 0 to twice the usual one


@dataclass(frozen=True)
class CurvePoint:
    """The accuracy at one radius.

    Attributes:
        epsilon: The radius.
        accuracy: The accuracy of a single prediction there, between 0 and 1.
        low: Lower end of its 95 % interval.
        high: Upper end.

    Example::

        from enresnet.evaluation import accuracy_curve

        curve = accuracy_curve(model, (images, labels), "fmn5", draws=2)
        print(curve.lines["fmn5"][0].accuracy)  # on clean images
    """

    epsilon: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class AccuracyCurve:
    """Accuracy against epsilon, a line for each attack.

    It prints as a table, also in a notebook; :func:`enresnet.report.curve_figure` draws it.

    Attributes:
        lines: The points of each attack, by its name, from the smallest radius up.
        norms: The norm of each attack's radii: ``"linf"`` or ``"l2"``.
        smallest: The median size of the perturbations of each attack that minimises it; infinite
            where half of the images are not fooled.
        images: How many images there are.

    Example::

        from enresnet.evaluation import accuracy_curve

        curve = accuracy_curve(model, (images, labels), ["fmn5", "fgsm"], draws=2, seed=0)
        print(curve, curve.rows()[0]["accuracy"])
    """

    lines: dict[str, tuple[CurvePoint, ...]]
    norms: dict[str, str]
    smallest: dict[str, float]
    images: int

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of plain numbers for each point, for a data frame.

        Returns:
            Rows with ``attack``, ``norm``, ``epsilon``, ``accuracy``, ``low`` and ``high``.
        """
        return [
            {"attack": name, "norm": self.norms[name], **asdict(point)}
            for name, points in self.lines.items()
            for point in points
        ]

    def table(self) -> list[Row]:
        """Return a row of words for each radius, with a column for each attack, in per cent."""
        norms = list(dict.fromkeys(self.norms.values()))
        rows = []
        for norm in norms:
            own = {name: line for name, line in self.lines.items() if self.norms[name] == norm}
            for radius in sorted({point.epsilon for line in own.values() for point in line}):
                shown = brief(radius) + (f" in {norm}" if len(norms) > 1 else "")
                rows.append({"epsilon": shown, **self._at(radius, own)})
        return rows

    def _at(self, radius: float, own: Mapping[str, Sequence[CurvePoint]]) -> Row:
        cells = dict.fromkeys(self.lines, "")
        for name, line in own.items():
            for point in line:
                if point.epsilon == radius:
                    cells[name] = with_interval(point.accuracy, (point.low, point.high))
        return cells

    def caption(self) -> str:
        """Return what stands below the table."""
        norm = " in l2" if set(self.norms.values()) == {"l2"} else ""
        words = f"Accuracy in %, with 95 % intervals, on {self.images} images, by epsilon{norm}."
        for name, size in self.smallest.items():
            words += f" Under {name} the median of the smallest perturbations is {size:.4g}."
        return words

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        lines = {name: [asdict(point) for point in line] for name, line in self.lines.items()}
        return {
            "images": self.images,
            "norms": dict(self.norms),
            "smallest": dict(self.smallest),
            "lines": lines,
        }

    def __str__(self) -> str:
        return as_text(self.table(), caption=self.caption())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self.table(), caption=self.caption())

    @classmethod
    def of(
        cls,
        result: Evaluation,
        attacks: Mapping[str, Attack],
        radii: Mapping[str, Sequence[float]],
    ) -> AccuracyCurve:
        """Return the curve that accuracies amount to.

        Args:
            result: The accuracies under the attacks, and on clean images.
            attacks: The attacks by their names in ``result``.
            radii: For each norm, the radii at which attacks that minimise it are read off.
        """
        lines: dict[str, list[CurvePoint]] = {}
        norms, smallest = {}, {}
        for key, attack in attacks.items():
            name, found = attack.name, result.robust[key]
            norms[name] = norm = getattr(attack, "norm", "linf")
            if attack.minimal:
                lines[name] = _read_off(result.natural, found, radii[norm])
                smallest[name] = _median(found)
            else:
                start = [_point(0.0, result.natural)]
                own = _point(float(attack.settings()["epsilon"]), found)
                lines[name] = [*lines.get(name, start), own]
        kept = {name: tuple(_by_radius(points)) for name, points in lines.items()}
        return cls(kept, norms, smallest, result.natural.images)


def accuracy_curve(
    model: Model,
    dataset: Images | tuple[Tensor, Tensor] | Any,
    attacks: str | Sequence[str] = "fmn100",
    *,
    epsilons: Sequence[float] | None = None,
    draws: int = 10,
    batch_size: int = 128,
    limit: int | None = None,
    seed: int | None = None,
    journal: str | os.PathLike[str] | Journals | None = None,
    progress: bool | None = None,
) -> AccuracyCurve:
    """Return the accuracy of ``model`` against epsilon, under each of ``attacks``.

    FMN gives a line from one run. Other attacks are run once for each radius.

    Args:
        model: From images in [0, 1], N x C x H x W, to logits N x classes.
        dataset: As for :func:`evaluate`.
        attacks: One or several names of attacks, all of them in linf or all in l2; fmn100 by
            default.
        epsilons: The radii; by default 11 from 0 to 16/255 in linf, and to 1 in l2.
        draws: Predictions that every image is scored over; 10 by default, 1 for a deterministic
            model.
        batch_size: Images in one call of the model; 128 by default.
        limit: Use only the first so many images; None, the default, for all.
        seed: Fixes the noise and the attacks; by default nothing is fixed.
        journal: A folder that keeps results as they come; the same call goes on from there. Needs a
            seed. By default nothing is kept.
        progress: Whether to show progress; None shows it on a terminal and in a notebook.

    Shape:
        - dataset, as a pair: images N x C x H x W, labels N

    Returns:
        The curve. It prints as a table.

    Raises:
        ValueError, TypeError: An argument is not what it should be, an attack has no radius, or
            attacks have different norms.
        FloatingPointError, FileExistsError: As :func:`evaluate`.

    Example::

        from enresnet.evaluation import accuracy_curve

        print(accuracy_curve(model, (images, labels), ["fmn5", "ifgsm2"], draws=2, seed=0))
    """
    names = [attacks] if isinstance(attacks, str) else list(attacks)
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"attacks must name at least one attack, each once, found {names}")
    norms = {"l2" if "_l2" in name else "linf" for name in names}
    if len(norms) > 1:
        raise ValueError(f"attacks must all be in one norm, found linf and l2: {', '.join(names)}")
    (norm,) = norms
    radii = usual_radii(DEFAULT_EPSILON[norm])
    if epsilons is not None:
        radii = sorted({check_epsilon(radius, norm, "epsilons") for radius in epsilons})
    made = {
        f"{name} at {radius!r}" if radius is not None else name: attack
        for name in names
        for radius, attack in curve_attacks(name, radii, seed=seed).items()
    }
    options = EvaluationOptions(draws, batch_size, limit, seed, journal, progress=progress)
    result = Session.open(model, dataset, options).measure(made).evaluation()
    return AccuracyCurve.of(result, made, {norm: radii})


def usual_radii(epsilon: float) -> list[float]:
    """Return the radii of a curve: from 0 to twice ``epsilon``."""
    return [2 * epsilon * step / (RADII - 1) for step in range(RADII)]


def curve_attacks(
    name: str, radii: Sequence[float], *, seed: int | None = None, **options: Any
) -> dict[float | None, Attack]:
    """Return what has to be run for a curve: an attack for each radius, or one without.

    At radius 0 there is nothing to run.
    """
    if is_minimal(name):
        generator = None if seed is None else named_generator(seed, f"attack {name}")
        chosen = {key: options[key] for key in ("eot", "targets") if options.get(key) is not None}
        if "_targeted" not in name:
            chosen.pop("targets", None)
        return {None: create_attack(name, generator=generator, **chosen)}
    return {
        radius: attack_at(name, radius, seed=seed, epsilon_l2=radius, **options)
        for radius in radii
        if radius > 0
    }


def is_minimal(name: str) -> bool:
    """Return whether one run of an attack gives its whole curve.

    Raises:
        ValueError: The attack is unknown, or has no radius.
    """
    one = create_attack(name)
    if not one.minimal and "epsilon" not in one.settings():
        raise ValueError(
            f"{name} has no radius, so accuracy under it cannot be drawn against one; name fmn100, "
            "which looks for the smallest perturbation, or an attack with an epsilon"
        )
    return one.minimal


def without_single_images(
    known: Mapping[str, Accuracy], attacks: Mapping[str, Attack]
) -> dict[str, Accuracy]:
    """Return the known accuracies from which a curve can be drawn.

    An attack that minimises needs the perturbation and the score of each image, and the clean
    images' scores; files keep neither.
    """
    minimal = {name for name, attack in attacks.items() if attack.minimal}
    dropped = {*minimal, NATURAL} if minimal else minimal
    return {name: value for name, value in known.items() if name not in dropped}


def _point(radius: float, value: Accuracy) -> CurvePoint:
    return CurvePoint(radius, value.accuracy, *value.interval)


def _read_off(clean: Accuracy, found: Accuracy, radii: Sequence[float]) -> list[CurvePoint]:
    """Return the points of an attack that minimises, from each image's norm and scores."""
    assert found.norms is not None
    assert clean.scored is not None
    assert found.scored is not None
    points = []
    for radius in dict.fromkeys([0.0, *radii]):
        inside = found.norms <= radius
        scores = torch.where(inside, found.scores, clean.scores)
        without = None
        if found.shared_variance > 0:  # images may share noise
            right = torch.where(inside[:, None], found.scored.right, clean.scored.right).double()
            others = right.sum(dim=1, keepdim=True) - right
            without = others.mean(dim=0) / max(1, right.shape[1] - 1)
        interval = accuracy_interval(scores, without=without)
        points.append(CurvePoint(float(radius), float(scores.mean()), *interval))
    return points


def _median(found: Accuracy) -> float:
    """Return the median norm over all images; those that most draws still get right have none."""
    assert found.norms is not None
    return float(torch.where(found.scores > 0.5, torch.inf, found.norms).median())


def _by_radius(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    return sorted({point.epsilon: point for point in points}.values(), key=lambda p: p.epsilon)
