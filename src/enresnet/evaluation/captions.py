"""What stands below a table of accuracies: how far attacks went, and what the columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enresnet.common.text import brief
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.matrix import TransferMatrix

ONE_DRAW = (
    "AutoAttack itself counts an image as lost if one draw of the noise gets it wrong: 'claimed' "
    "is its own accuracy, 'accuracy' that of its images on fresh draws."
)


def evaluation_caption(
    result: Evaluation,
    *,
    radii: Sequence[float],
    eot: int,
    attacked: dict[str, Any] | None = None,
) -> str:
    """Return the caption of an evaluation's table.

    Args:
        result: What was found.
        radii: The radii in linf that the attacks were at.
        eot: Draws of the noise averaged in every gradient.
        attacked: The description of the adversarial set, where the images are one.
    """
    settings = [value.settings or {} for value in result.robust.values()]
    caption = "In %, with 95 % intervals."
    if result.robust:
        caption = f"{caption[:-1]}; {_radius(settings, radii)}{_eot(result, settings, eot)}."
    if attacked is not None:
        caption += f" The images were attacked by {attacked['attack']} on {attacked['model']}."
        caption += " Attacks on them may move as far once more." if result.robust else ""
    if result.natural.draws > 1:
        caption += (
            f" Over {result.natural.draws} draws of the noise per image: 'accuracy' is that of a "
            f"single prediction, 'averaged' that of the mean of {result.natural.draws}; 'always "
            "right' are images right in all draws, 'lost in k' those wrong at least once in k."
        )
    if any("budget" in own for own in settings):
        caption += " 'gradients' is the mean number per image, of the budget."
    if any(value.claimed is not None for value in result.robust.values()):
        caption += f" {ONE_DRAW}"
    return caption


def transfer_titles(result: TransferMatrix, *, radii: Sequence[float], data: str) -> dict[str, str]:
    """Return the title of the table of each attack, by the attack's name.

    Args:
        result: What was found.
        radii: The radii in linf that the attacks were at; of several the names say which.
        data: The name of the images.
    """
    count = next(iter(result.natural.values())).images
    radius = f", epsilon = {brief(radii[0])}" if len(radii) == 1 else ""
    return {
        attack: f"{attack}{radius}{result.gradient_draws(attack)}, {count} images of {data}"
        for attack in result.attacks
    }


def details_caption(kept: object) -> str:
    """Return the caption of the table of details, with the file that results are kept in."""
    return (
        "ECE: expected calibration error, in points; 'gradients' and 'passes' are the mean numbers "
        f"of gradients and forward passes that the attack took per image. Stored in {kept}"
    )


def _radius(settings: Sequence[dict[str, Any]], radii: Sequence[float]) -> str:
    """Return how far the attacks might go; where there are several radii the names say so."""
    in_l2 = [own for own in settings if own.get("norm") == "l2"]
    l2 = sorted({own.get("epsilon", own.get("max_epsilon")) or 0.0 for own in in_l2} - {0.0})
    linf = len(in_l2) < len(settings) or not l2
    words = [", ".join(map(brief, radii))] * linf
    return "epsilon = " + " and ".join(words + [f"{', '.join(map(brief, l2))} in l2"] * bool(l2))


def _eot(result: Evaluation, settings: Sequence[dict[str, Any]], eot: int) -> str:
    """Return over how many draws gradients were averaged; AutoAttack has a number of its own."""
    ours = f", EOT over {eot}" * any("eot" in own for own in settings)
    return ours + ", AutoAttack's over 20" * ("autoattack_rand" in result.robust)
