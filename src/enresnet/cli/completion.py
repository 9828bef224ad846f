"""``enresnet completion SHELL``."""

from __future__ import annotations

from typing import Literal

import tyro


def command(shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]) -> None:
    """Print a script that lets a shell complete commands, options and their words.

    Write it once to where the shell looks for it: for bash
    ~/.local/share/bash-completion/completions/enresnet, for zsh _enresnet in a folder of $fpath,
    for fish ~/.config/fish/completions/enresnet.fish. Or source it. It does not start Python.

    Args:
        shell: The shell that it is for: bash, zsh or fish.
    """
    from enresnet.cli import completion_scripts
    from enresnet.cli.command_words import read_commands

    write = {
        "bash": completion_scripts.bash_script,
        "zsh": completion_scripts.zsh_script,
        "fish": completion_scripts.fish_script,
    }[shell]
    print(write(read_commands()), end="")
