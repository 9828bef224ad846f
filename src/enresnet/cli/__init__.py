"""The command ``enresnet``: one file a command; arguments in, one call, exit code out.

Exit codes: 0 done, 1 a check that failed, 2 bad input. A command's file is imported only when that
command is asked for, and torch only when it has something to compute, so that help comes at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import enresnet
from enresnet.common import checks
from enresnet.common.allocator import keep_memory
from enresnet.common.processes import first_process
from enresnet.common.text import for_terminal

COMMANDS = {
    "quickstart": "The whole idea in about a minute, on real digits; writes a page.",
    "demo": "See the defence: a page on this machine to attack images of your choice.",
    "data": "Fetch and verify a data set.",
    "train": "Train a network into a run folder.",
    "resume": "Resume a training run that was stopped.",
    "runs": "List runs with their state, accuracy and how to resume them.",
    "evaluate": "Measure natural and robust accuracy of a run or of any model.",
    "results": "Show all results of one or more models.",
    "report": "Write one page on runs: accuracies, claims, curves, images, costs.",
    "compare": "Test whether one evaluated model is better than another.",
    "transfer": "Attack one model with the images made against another.",
    "diagnose": "Check a model for gradient masking.",
    "pde": "Run the theory: Figure 4, Feynman-Kac, levels, theorems, a classifier.",
    "reproduce": "Reproduce tables, figures and claims of the paper.",
    "integrate": "Join separately trained networks into one model.",
    "export": "Write a network to a file for other runtimes: ONNX, torch.export.",
    "models": "List the trained networks in the package, and those of the paper.",
    "attacks": "List the attacks, with their default settings.",
    "doctor": "Show what is installed, what works and what is missing.",
    "completion": "Print a script that completes commands and options in a shell.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        if for_terminal(word) != word:  # it would reach the terminal in some message
            return _refuse(f"arguments must be without control characters, found {word}")
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] == "help":  # enresnet help COMMAND
        if len(words) == 1:
            print(_help())
            return 0
        words = [words[1], "--help"]
    if words[0] in ("-V", "--version"):
        print(f"enresnet {enresnet.__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        return _refuse(
            f"unknown command {name!r}: known are {', '.join(COMMANDS)}"
            + checks.did_you_mean(name, COMMANDS)
        )
    try:
        if name == "doctor" and not _is_there("tyro"):
            return int(importlib.import_module("enresnet.cli.doctor").without_tyro(words[1:]))
        import tyro

        from enresnet.cli.options import flattened, readable

        command = flattened(importlib.import_module(f"enresnet.cli.{name}").command)
        readable(command)
        keep_memory()
        with _plain_warnings():
            code = tyro.cli(
                command,
                prog=f"enresnet {name}",
                description=(command.__doc__ or "").partition("Args:")[0],
                args=words[1:],
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except FloatingPointError as error:
        return _refuse(str(error), once=True)
    except ModuleNotFoundError as error:
        return _refuse(f"{error}; enresnet doctor says what is missing")
    except BrokenPipeError:  # who reads our output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except (ValueError, TypeError, OSError, MemoryError, ImportError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt as stop:
        _refuse(str(stop) or "interrupted", once=True)
        return 128 + 2
    except Exception as error:
        if (code := getattr(error, "exit_code", None)) is None:
            raise
        # An end that all processes agree on is not one that the others are to blame for.
        code = code if _refuse(str(error), once=True) else 0
    return int(code or 0)


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _help() -> str:
    lines = [
        "usage: enresnet COMMAND ...",
        "",
        "Feynman-Kac ensembles of residual networks, and how robust they are.",
        "",
        "commands:",
        *(f"  {name:<12}{summary}" for name, summary in COMMANDS.items()),
        "",
        "enresnet help COMMAND shows a command's options; enresnet -V the version.",
    ]
    return "\n".join(lines)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Let warnings to users be printed without the line of code that gave them."""
    before = warnings.formatwarning

    def plainly(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category is UserWarning:
            return f"enresnet: {for_terminal(str(message))}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = plainly
    try:
        yield
    finally:
        warnings.formatwarning = before


def _refuse(message: str, *, once: bool = False) -> int:
    """Print why a command ends; ``once`` if every process of a training knows it.

    Return the exit code: that of the first process counts.
    """
    if once and not first_process():
        return 0
    print(f"enresnet: {for_terminal(message)}", file=sys.stderr)
    return 2
