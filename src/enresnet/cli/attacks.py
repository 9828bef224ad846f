"""``enresnet attacks``."""

from __future__ import annotations

import inspect
from pathlib import Path

from enresnet import attacks
from enresnet.cli.output import write_json
from enresnet.common.tables import print_table


def command(*, json: Path | None = None) -> None:
    """List the attacks, with their default settings.

    Args:
        json: Also write the table to this file.
    """
    rows = [
        {
            "name": attack.name,
            "attack": repr(attack),
            "what it does": (inspect.getdoc(attack) or "").splitlines()[0],
        }
        for attack in map(attacks.create_attack, attacks.list_attacks())
    ]
    write_json(json, rows)
    print_table(
        rows,
        caption="Names take another number of steps (ifgsm7, pgd100, apgd50, fmn50, cw200), and "
        "cw another confidence in logits (cw_kappa0.5, cw200_pixel_kappa2).",
    )
