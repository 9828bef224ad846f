"""What happened, in one sentence that takes no side."""

from __future__ import annotations

from enresnet.demo.experiment import DemoResult, Side

NOTABLE = 5  # in % of the draws: a smaller loss is not worth a word


def what_happened(result: DemoResult) -> str:
    """Return one plain sentence on what the attack did to both networks.

    Args:
        result: What :func:`attack_pair` found.

    Returns:
        A sentence such as "The plain network now says 3; the ensemble still says 8 in 97 of 100
        draws."

    Example::

        from enresnet.demo import attack_pair, list_pairs, what_happened

        pair = list_pairs()[0]
        images, labels = pair.test_images().batch(slice(1))
        print(what_happened(attack_pair(pair, images[0], int(labels))))
    """
    base, ensemble = (_clause(side, result) for side in (result.base, result.ensemble))
    fooled = [_fooled(side, result.label) for side in (result.base, result.ensemble)]
    known = all(_right_before(side, result.label) for side in (result.base, result.ensemble))
    if known and all(fooled):
        return f"Both networks are fooled: the plain network {base}, and the ensemble {ensemble}."
    if known and not any(fooled):
        return f"Neither network is fooled: the plain network {base}, and the ensemble {ensemble}."
    return f"The plain network {base}; the ensemble {ensemble}."


def how_attacked(result: DemoResult) -> str:
    """Return what was done to the image, and what is known of it."""
    settings = result.settings
    changes = [f"{side.largest_change:.1f}" for side in (result.base, result.ensemble)]
    levels = " and ".join(dict.fromkeys(changes))
    names = {"base": "the plain network", "ensemble": "the ensemble"}
    if settings.attack == "noise":
        deed = "Random noise, which knows no network, is added to the image"
    elif settings.against == "each":
        means = "by its answers alone (black box)" if settings.attack == "square" else "(white box)"
        deed = f"{settings.attack_name} attacks each network by itself {means}"
    else:
        seen, blind = names.pop(settings.against), names.popitem()[1]
        deed = f"{settings.attack_name} attacks {seen}; {blind} is shown the same image (blind)"
    if result.label is None:
        aim = "The true class is not known: the attack leads away from the network's own answer."
    else:
        aim = f"The true class is {result.pair.classes[result.label]}."
    return f"{deed}. The largest change of a pixel is {levels} of 255 grey levels. {aim}"


def _clause(side: Side, result: DemoResult) -> str:
    """Return what one network does: "still says 8 in 97 of 100 draws"."""
    classes, answer = result.pair.classes, side.after
    words = f"{'now' if side.changed else 'still'} says {classes[answer.top]}"
    if answer.draws > 1:
        words += f" in {answer.wins[answer.top]} of {answer.draws} draws"
        lost = side.before.wins[answer.top] - answer.wins[answer.top]
        if not side.changed and 100 * lost >= NOTABLE * answer.draws:
            words += f" (before the attack: {side.before.wins[answer.top]})"
    if not _right_before(side, result.label):
        if answer.top == result.label:
            words += f" (which is right; before the attack it said {classes[side.before.top]})"
        elif side.changed:
            words += f" (it was wrong before the attack too: it said {classes[side.before.top]})"
        else:
            words += " (which was wrong before the attack too)"
    return words


def _right_before(side: Side, label: int | None) -> bool:
    """Return whether there was an answer to lose; where no class is known, the network's own."""
    return label is None or side.before.top == label


def _fooled(side: Side, label: int | None) -> bool:
    return side.changed and _right_before(side, label)
