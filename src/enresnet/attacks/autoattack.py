"""AutoAttack (Croce and Hein, 2020) as its authors wrote it, for comparison.

It counts an image as lost as soon as one prediction of it is wrong. A randomised model loses images
so that it would get right on the next draw: its figure is kept as the result's ``claimed``, and its
images are scored over fresh draws like those of any other attack. Images that it could not break it
hands back clean, so that on those the second figure is that of clean images.
"""

from __future__ import annotations

import importlib.util
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.attacks.base import Attack
from enresnet.attacks.batch import Batch
from enresnet.attacks.geometry import BALLS
from enresnet.attacks.ifgsm import check_epsilon
from enresnet.common import checks

Version = Literal["standard", "rand"]
VERSIONS: tuple[Version, ...] = get_args(Version)
FEWEST_CLASSES = {"standard": 4, "rand": 3}  # its losses look at so many logits
# Forward passes of an image that survives: APGD, targeted APGD, FAB, Square; or APGD twice, EOT-20.
_PASSES = {"standard": 100 + 900 + 2700 + 5000, "rand": 2 * 100 * 20}


class AutoAttack(Attack):
    """Runs the authors' AutoAttack, in linf, through the package pyautoattack.

    Install it with ``pip install 'enresnet[autoattack]'``. AutoAttack counts an image as broken as
    soon as one prediction is wrong, which overstates its success against a randomised model. What
    it says it could not break is in ``claimed`` of the :class:`AttackResult`. Images that it could
    not break come back clean.

    Args:
        epsilon: The largest change of a pixel, in units of the image's range [0, 1]; 8/255 by
            default.
        version: ``"standard"`` for deterministic models (the default), or ``"rand"``, which
            averages gradients over 20 draws, for randomised ones.
        generator: Draws the seed of each batch. By default it starts from the system's entropy.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range or unknown. The call raises it too, if pyautoattack
            is not installed or the model has fewer than 4 classes (3 for ``"rand"``).

    Example::

        from enresnet.attacks import AutoAttack

        attack = AutoAttack(epsilon=8 / 255, version="rand")
        print(attack.name, attack.passes)  # the call needs pyautoattack
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        version: Version = "standard",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(eot=1, generator=generator)  # it averages by itself
        self.epsilon = check_epsilon(epsilon, "linf")
        self.version = checks.choice("version", version, VERSIONS)

    @property
    def name(self) -> str:
        """The name on the command line and in results."""
        return "autoattack" if self.version == "standard" else "autoattack_rand"

    def forward_passes(self) -> int:
        """Return how many forward passes one image costs."""
        return _PASSES[self.version]

    def perturb(self, batch: Batch) -> Tensor:
        """Return the attacked images of one batch."""
        check_installed()
        import pyautoattack  # type: ignore[import-untyped]

        device = batch.images.device
        with torch.no_grad():
            classes = batch.logits(batch.images[:1]).shape[1]
        if classes < FEWEST_CLASSES[self.version]:
            raise ValueError(
                f"{self.name} needs a model with at least {FEWEST_CLASSES[self.version]} classes, "
                f"found {classes}; use strongest"
            )
        seed = int(torch.randint(2**31, (), generator=batch.generator))
        # It seeds torch's global generator: that is put back where it was.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            attack = pyautoattack.AutoAttack(
                _Module(batch),
                norm="Linf",
                eps=self.epsilon,
                version=self.version,
                device=device,
                seed=seed,
            )
            attack.verbose = False
            # It counts on ten classes.
            others = min(9, classes - 1)
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = others
            images, answers = attack.run_standard_evaluation(
                batch.images.float(), batch.labels, batch_size=max(1, len(batch.images))
            )
        batch.classifier.claims.append((answers == batch.labels).cpu())
        ball = BALLS["linf"](batch.images, self.epsilon)
        return ball.settle(ball.nearest(images.to(ball.centre)))  # rounding may have left it


def check_installed() -> None:
    """Raise where the package is not there."""
    if importlib.util.find_spec("pyautoattack") is None:
        raise ValueError("autoattack needs the package pyautoattack: pip install pyautoattack")


class _Module(nn.Module):
    """The model as a module that takes and gives float32, as AutoAttack does."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self._batch = [batch]  # in a list: nothing in it is a submodule
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        (batch,) = self._batch
        if images.requires_grad:
            batch.classifier.gradients += len(images)
        return batch.logits(images).float()
