"""``enresnet models``."""

from __future__ import annotations

from pathlib import Path

from enresnet.cli.output import write_json
from enresnet.common.tables import Row, print_table
from enresnet.common.text import brief
from enresnet.models import (
    ModelCard,
    count_parameters,
    list_models,
    list_pretrained,
    paper_name,
)
from enresnet.models.pretrained import FOLDER


def command(*, json: Path | None = None) -> None:
    """List the weights that come with the package, and the networks of the paper.

    Args:
        json: Also write both lists to this file.
    """
    cards = list_pretrained()
    rows: list[Row] = [
        {
            "name": name,
            "paper": paper_name(name),
            "parameters": count_parameters(name),
        }
        for name in list_models()
    ]
    write_json(json, {"pretrained": [card.to_json() for card in cards], "networks": rows})
    if cards:
        print_table(
            [_card_row(card) for card in cards],
            title="trained, in the package",
            caption="Test accuracy of a single prediction, in %, and the number of test images; "
            f"size in parameters. The card beside each file in {FOLDER} has the intervals, and "
            "says how the network was trained and measured and what it is not for.",
        )
    print_table(
        [{**row, "parameters": f"{row['parameters'] / 1e6:.2f} M"} for row in rows],
        title="networks of the paper",
        caption="Any [enK_]BASE[+...] works: BASE is resnetD (D = 6n+2), resnetD_bottleneck "
        "(D = 9n+2) or wrnD_K (D = 6n+4). enK_ averages K noise-injected networks.",
    )


def _card_row(card: ModelCard) -> Row:
    def shown(images: str) -> str:
        found = card.accuracy(images)
        return "" if found is None else f"{100 * found.accuracy:.1f} ({found.number})"

    return {
        "name": card.name,
        "size": f"{card.parameters / 1e6:.2f} M",
        "epsilon": brief(card.recipe["epsilon"]),
        **{images: shown(images) for images in ("clean", "fgsm", "ifgsm20", "strongest")},
    }
