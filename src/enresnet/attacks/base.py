"""What every attack shares: batches, progress, an untouched model."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from enresnet.attacks.batch import Batch
from enresnet.attacks.counting import Classifier
from enresnet.attacks.determinism import EOT, FEW, usual_eot
from enresnet.attacks.failures import AttackFailedError, naming_attack
from enresnet.attacks.geometry import norms_between
from enresnet.attacks.inputs import check_model_and_images
from enresnet.attacks.known_networks import is_batch_independent, is_deterministic, is_separable
from enresnet.attacks.precision import wants_bfloat16
from enresnet.attacks.targets import Aim, ChosenTargets, Goal, towards_all
from enresnet.common import checks
from enresnet.common.precision import Precision
from enresnet.common.progress import counted, progress_bar
from enresnet.common.randomness import checked_generator
from enresnet.common.text import brief
from enresnet.models.frozen import FrozenCall, frozen
from enresnet.models.interface import Model, device_of

LONG = 10  # passes an image: from here on it pays to trace a network that is not ours


@dataclass(frozen=True)
class AttackResult:
    """The attacked images of :meth:`Attack.run`, and what they cost.

    Attributes:
        images: The attacked images, in the shape, type and device of those given.
        gradients: Gradients evaluated, counted in single images.
        evaluations: Forward passes, counted in single images; those of the gradients are included.
        claimed: For :class:`AutoAttack`, which images it says it could not break, one boolean an
            image; None for other attacks.

    Example::

        from enresnet.attacks import IFGSM

        result = IFGSM(steps=5).run(model, images, labels)
        print(result.evaluations / len(images))  # 5.0
    """

    images: Tensor
    gradients: int
    evaluations: int
    claimed: Tensor | None = None


class Attack(ABC):
    """Base class of all attacks: changes images so that a model gets them wrong.

    An attack sees only a callable from images in [0, 1] to logits. It runs a module in evaluation
    mode and leaves it as it was. A subclass defines ``name``, ``forward_passes`` and ``perturb``.

    Args:
        eot: Draws of the model's own noise that every gradient and judgement averages (expectation
            over transformation). None, the default, leaves it to the model: 1 if it always answers
            the same, else 5, as in the paper. A model that is neither ours nor one that torch.fx
            can follow is first asked about some images, in about 70 calls; a number spares them.
        goal: What counts as success: ``"untargeted"``, any class but the label (the default);
            ``"targeted"``, the target class; ``"runner_up"``, the class other than the label that
            the model ranks first on the clean image.
        targets: How a targeted attack chooses its targets, where the call does not give them:
            ``"random"``, one of the other classes; ``"least_likely"`` and ``"runner_up"``, the last
            and the first of them on the clean image; ``"all"``, each in turn, and the worst result
            is kept.
        generator: Draws random starts and random targets. By default it starts from the system's
            entropy; torch's global generator is never used.

    Shape:
        - images: N x C x H x W, or N x ... for attacks without a notion of pixels
        - labels, targets: N
        - result of a call: as images

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``eot`` is below 1, ``goal`` or ``targets`` is unknown, or ``targets`` are
            chosen for a goal other than ``"targeted"``.

    Example::

        from enresnet.attacks import Attack

        class Negative(Attack):
            name = "negative"

            def forward_passes(self):
                return 0

            def perturb(self, batch):
                return 1 - batch.images

        attacked = Negative()(model, images, labels)
    """

    precision: Precision = "32"  # of gradients; see precision.py
    random = False  # whether it draws a seed for every example
    minimal = False  # whether it looks for the smallest perturbation, so that norms tell all

    def __init__(
        self,
        *,
        eot: int | None = None,
        goal: Goal = "untargeted",
        targets: ChosenTargets | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.eot = None if eot is None else checks.integer("eot", eot, low=1)
        aim = Aim(goal, targets)
        self.goal, self.chosen_targets = aim.goal, aim.chosen
        self.generator = checked_generator(generator)

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        targets: Tensor | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        evaluating: bool = True,
        progress: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Return the attacked images, a new tensor; see :meth:`run` for all else.

        Args:
            model: An ``nn.Module`` or any callable from images in [0, 1] to logits. It runs in
                evaluation mode and is left as it was.
            images: In [0, 1]; they are moved to a module's device and back.
            labels: The right classes, from 0 up.
            targets: The classes that a targeted attack is to reach, where it does not choose them
                itself; none may be its image's label.
            batch_size: Images in one call of the model; all by default.
            seed: Fixes what the attack draws in this call. By default it draws from its generator,
                which continues from call to call.
            evaluating: False leaves the model's mode alone: one in training then moves its
                BatchNorm statistics, as the paper's released code lets it.
            progress: None shows a bar on a terminal when the call takes long.
            advance: Called in place of a bar, with the number of passes just done (images times
                steps).

        Shape:
            - images: N x C x H x W, or N x ... for attacks without a notion of pixels
            - labels, targets: N
            - result: as images

        Raises:
            TypeError: The model is not callable, or images or labels are not what they should be.
            ValueError: Images are not in [0, 1], labels are not the model's classes, targets are
                missing, the model fails or does not return logits N x classes, or the code of an
                attack of your own fails: the message tells which of the two.

        Example::

            from enresnet.attacks import IFGSM

            attacked = IFGSM(epsilon=8 / 255, steps=20)(model, images, labels)
        """
        return self.run(
            model,
            images,
            labels,
            targets=targets,
            batch_size=batch_size,
            seed=seed,
            evaluating=evaluating,
            progress=progress,
            advance=advance,
        ).images

    def run(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        targets: Tensor | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        evaluating: bool = True,
        progress: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> AttackResult:
        """Return the attacked images and what they cost; the arguments are those of the call.

        Example::

            from enresnet.attacks import Strongest

            result = Strongest(budget=500).run(model, images, labels)
            print(result.gradients / len(images))  # gradient evaluations an image
        """
        check_model_and_images(model, images, labels)
        if batch_size is None:
            batch_size = max(len(images), 1)
        checks.integer("batch_size", batch_size, low=1)
        attack = self.decided(model, images[:batch_size])
        images, labels = images.detach(), labels.detach()
        given = attack._aim.check_targets(
            targets, labels, images, name=attack.name, kind=type(attack).__name__
        )
        generator = attack.generator if seed is None else torch.Generator().manual_seed(seed)
        seeds = attack._draw_seeds(len(images), generator)
        bar = progress_bar(
            attack.name, len(images) * attack.passes, show=progress if advance is None else False
        )
        device = device_of(model, default=images.device)
        few = images[:FEW].to(device) if attack.passes >= LONG and len(images) else None
        with bar as move, frozen(model, evaluating=evaluating, few=few) as call:
            largest = max(int(classes.max()) if len(labels) else 0 for classes in (labels, given))
            # For a deterministic model one draw is as good as many.
            same, averaged = is_deterministic(model, call), attack.draws
            eot = 1 if same else averaged
            classifier = Classifier(model, call, largest, worth=averaged // eot)
            reduced = wants_bfloat16(model, call, images[:0].to(device), attack.precision)
            independent, separable = is_batch_independent(model, call), is_separable(model, call)
            result = torch.empty_like(images)
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                classifier.new_batch()
                batch = Batch(
                    # clone: a tensor made in inference mode could not carry a gradient
                    images=images[rows].to(device).clone(),
                    labels=labels[rows].to(device, torch.int64).clone(),
                    seeds=seeds[rows],
                    generator=generator,
                    classifier=classifier,
                    eot=eot,
                    whole=len(images[rows]),
                    reduced=reduced,
                    independent=independent,
                    deterministic=same,
                    separable=separable,
                    slack=call.slack if isinstance(call, FrozenCall) else 0.0,
                )
                report = move if advance is None else lambda n, _="": advance(n)
                aims = given[rows].to(device, torch.int64)
                with (
                    counted(report, batch.whole * attack.passes) as classifier.advance,
                    naming_attack(attack.name, type(attack)),
                ):
                    result[rows] = attack._aimed(batch, aims)
        classifier.warn_of_bad_numbers()
        claimed = torch.cat(classifier.claims) if classifier.claims else None
        return AttackResult(result, classifier.gradients, classifier.evaluations, claimed)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name on the command line and in results, such as ifgsm20."""

    @property
    def passes(self) -> int:
        """How many forward passes one image costs."""
        return self._aim.passes(self.forward_passes(), self.draws)

    @property
    def _aim(self) -> Aim:
        return Aim(self.goal, self.chosen_targets)

    @property
    def draws(self) -> int:
        """The number of draws it averages over; the largest possible where the model decides."""
        return EOT if self.eot is None else self.eot

    def decided(self, model: Model, images: Tensor) -> Self:
        """Return the attack with the ``eot`` that suits ``model``, where it was left open.

        A model that is not ours is asked about some of the images whether it always answers the
        same.
        """
        return self if self.eot is not None else self.averaging(usual_eot(model, images))

    def averaging(self, eot: int) -> Self:
        """Return the same attack over another number of draws; both share their generator."""
        attack = copy.copy(self)
        attack.eot = checks.integer("eot", eot, low=1)
        return attack

    def _aimed(self, batch: Batch, given: Tensor) -> Tensor:
        """Return the attacked images of a batch, with the labels or targets that the goal means."""
        if self.goal == "untargeted":
            return self._perturbed(batch)
        if self.chosen_targets == "all":
            return self._towards_all(batch)
        return self._perturbed(self._aim.targeted(batch, given))

    def _towards_all(self, batch: Batch) -> Tensor:
        """Aim at every other class in turn; keep the worst result."""
        return towards_all(batch, self._perturbed)

    @abstractmethod
    def forward_passes(self) -> int:
        """Return how many forward passes the perturbation of one image costs, for the progress."""

    @abstractmethod
    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch; they may have left neither [0, 1] nor the ball.

        The batch answers what an attack may ask: gradients, logits, losses, who is fooled.
        """

    def _perturbed(self, batch: Batch) -> Tensor:
        """Return the result of :meth:`perturb`; raise unless it has the shape of the images."""
        found: object = self.perturb(batch)
        if not isinstance(found, Tensor) or found.shape != batch.images.shape:
            raise AttackFailedError(
                f"attack {self.name} must return images like those of its batch, "
                f"{_shown(batch.images)}; perturb of {type(self).__name__} returned "
                f"{_shown(found)}"
            )
        return found

    def norms(self, attacked: Tensor, images: Tensor) -> Tensor:
        """Return the size of each image's perturbation, in the attack's norm.

        Args:
            attacked: The attacked images.
            images: The images.

        Shape:
            - attacked, images: N x ...
            - result: N, float64
        """
        return norms_between(attacked, images, getattr(self, "norm", "linf"))

    def _draw_seeds(self, count: int, generator: torch.Generator) -> Tensor:
        """Return a seed for each example, where the attack is random."""
        if not self.random and self.chosen_targets != "random":
            return torch.zeros(count, dtype=torch.int64)
        return torch.randint(2**62, (count,), generator=generator, device=generator.device)

    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters, to the last digit, and the kind of attack."""
        values = self._values()
        plain = {
            name: value if isinstance(value, int | float | str | None) else repr(value)
            for name, value in values.items()
        }
        return {"kind": type(self).__name__, **plain}

    def _values(self) -> dict[str, Any]:
        """Return the hyper-parameters by name.

        Targets that are not chosen and an early stop that is off are left out, so that results
        stored before these options existed still match.
        """
        names = [name for name in inspect.signature(type(self)).parameters if name != "generator"]
        values = {name: getattr(self, name, self.chosen_targets) for name in names}
        left_out = {"targets": None, "early_stop": False}
        return {n: v for n, v in values.items() if n not in left_out or v is not left_out[n]}

    def __repr__(self) -> str:
        words = [f"{name}={brief(value)}" for name, value in self._values().items()]
        return f"{type(self).__name__}({', '.join(words)})"


def _shown(value: object) -> str:
    """Return the shape of a tensor in words; of something else, its type."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return " x ".join(map(str, value.shape)) or "a single number"
