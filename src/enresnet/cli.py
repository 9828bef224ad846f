"""The command ``enresnet``: arguments in, one call, exit code out.

Exit codes: 0 done, 1 a check that failed, 2 bad input. Torch is imported inside the commands that
need it, so that help comes at once.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from tyro.extras import SubcommandApp

import enresnet
from enresnet.files import replacing

app = SubcommandApp()

Row = dict[str, Any]


@app.command(name="models")
def models(*, json: Path | None = None) -> None:
    """List the networks of the paper, with their sizes.

    Args:
        json: Also write the table to this file.
    """
    from enresnet.models import create_model, list_models, paper_name

    rows: list[Row] = []
    for name in list_models():
        parameters = sum(p.numel() for p in create_model(name).parameters())
        rows.append({"name": name, "paper": paper_name(name), "parameters": parameters})
    if json is not None:
        _write_json(json, rows)
    _print_table(
        [{**row, "parameters": f"{row['parameters'] / 1e6:.2f} M"} for row in rows],
        caption="Any [enK_]BASE[+...] works: BASE is resnetD (D = 6n+2), resnetD_bottleneck "
        "(D = 9n+2) or wrnD_K (D = 6n+4). enK_ averages K noise-injected networks.",
    )


@app.command(name="attacks")
def attacks(*, json: Path | None = None) -> None:
    """List the attacks, with their default settings.

    Args:
        json: Also write the table to this file.
    """
    from enresnet.attacks import create_attack, list_attacks

    rows: list[Row] = []
    for name in list_attacks():
        attack = create_attack(name)
        summary = inspect.getdoc(attack) or ""
        rows.append({"name": name, "attack": repr(attack), "what it does": summary.splitlines()[0]})
    if json is not None:
        _write_json(json, rows)
    _print_table(rows, caption="Any number of steps may follow ifgsm, pgd and cw: pgd100, cw200.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"enresnet {enresnet.__version__}")
        return 0
    try:
        app.cli(
            prog="enresnet",
            description="Feynman-Kac ensembles of residual networks, and how robust they are.",
            args=words or ["--help"],
            config=(tyro.conf.FlagConversionOff,),
        )
    except (ValueError, TypeError, OSError) as error:
        print(f"enresnet: {error}", file=sys.stderr)
        return 2
    return 0


def _print_table(rows: list[Row], caption: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*rows[0], caption=escape(caption), caption_justify="left")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    Console().print(table)


def _write_json(path: Path, rows: list[Row]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
