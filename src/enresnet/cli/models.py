"""``enresnet models``."""

from __future__ import annotations

from pathlib import Path

from enresnet.cli.output import Row, print_table, write_json
from enresnet.models import create_model, list_models, paper_name


def command(*, json: Path | None = None) -> None:
    """List the networks of the paper, with their sizes.

    Args:
        json: Also write the table to this file.
    """
    rows: list[Row] = [
        {
            "name": name,
            "paper": paper_name(name),
            "parameters": sum(p.numel() for p in create_model(name).parameters()),
        }
        for name in list_models()
    ]
    write_json(json, rows)
    print_table(
        [{**row, "parameters": f"{row['parameters'] / 1e6:.2f} M"} for row in rows],
        caption="Any [enK_]BASE[+...] works: BASE is resnetD (D = 6n+2), resnetD_bottleneck "
        "(D = 9n+2) or wrnD_K (D = 6n+4). enK_ averages K noise-injected networks.",
    )
