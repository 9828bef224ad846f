"""A model as a file that other runtimes load: ONNX, or a program of torch.export."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.requirements import needs
from enresnet.models.noise import noise_modules
from enresnet.publish.noise_in_graphs import EXPORTED_NOISE, ExportedNoise, WithoutStreams

ExportFormat = Literal["onnx", "pt2"]
"""The kind of file: ONNX, or a program of ``torch.export``."""

FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
CLOSE = 1e-3  # what logits may change by, over their spread


@dataclass(frozen=True)
class Exported:
    """What :func:`export_model` wrote.

    Attributes:
        path: The file.
        format: ``"onnx"`` or ``"pt2"``.
        noise: What became of the noise.
        numbers: For ``noise="input"``, how many standard normal numbers each image needs; else 0.
        difference: The largest difference between its logits and the model's, over the spread of
            the logits; None if it could not be tried, for want of onnxruntime.

    Example::

        from enresnet.publish import export_model

        written = export_model(model, "model.pt2", noise="off", example=images)
        print(written.difference)
    """

    path: Path
    format: ExportFormat
    noise: ExportedNoise
    numbers: int
    difference: float | None


def export_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: ExportFormat | None = None,
    noise: ExportedNoise = "off",
    example: Tensor,
    classes: Sequence[str] = (),
) -> Exported:
    """Write a model to a file that other runtimes load, and try the file.

    The file takes images in [0, 1], N x C x H x W for any N, and gives logits N x classes; the
    model's own normalisation is inside.

    Args:
        model: A model, in any mode; it is left as it is.
        path: The file; one that exists is replaced, once the new one is whole.
        format: ``"onnx"`` or ``"pt2"``; by default what the path ends with.
        noise: What becomes of the model's noise. ``"off"`` (the default) leaves it out: the file
            always answers the same, and is weaker than the model under attack. ``"input"`` adds a
            second input, ``noise``, N x numbers from N(0, 1): the same numbers give the same
            answer. ``"drawn"`` lets the runtime draw it, anew in every call. onnxruntime draws the
            same in every new session of a process: open the file by :func:`open_onnx`.
        example: Images that the model takes; their height and width become the file's.
        classes: The names of the classes, kept in the file.

    Shape:
        - example: N x C x H x W in [0, 1]

    Returns:
        What was written, and how far its logits are from the model's.

    Raises:
        ImportError: ONNX needs onnx and onnxscript.
        TypeError: The model is not an ``nn.Module``.
        ValueError: A word is unknown, the model has no noise to be put in, it cannot be exported,
            or the file does not give the model's logits.

    Example::

        from enresnet.publish import export_model

        export_model(model, "model.pt2", noise="drawn", example=images)
    """
    target = Path(path)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, found {type(model).__name__}")
    ending = target.suffix.removeprefix(".")
    chosen = checks.choice("format", format or ending, FORMATS)
    if ending in FORMATS and ending != chosen:
        raise ValueError(f"path must end in .{chosen} for format={chosen!r}, found {target.name}")
    checks.choice("noise", noise, EXPORTED_NOISE)
    if noise != "off" and not any(place.noise > 0 for place in noise_modules(model)):
        raise ValueError(f"noise={noise!r} is for a model with noise; this one has none")
    example = torch.cat([example[:2]] * 2)[:3].detach().float().cpu()  # 0 and 1 are special sizes
    plain = WithoutStreams(model, noise, example).cpu().float()
    given: tuple[Tensor, ...] = (example,)
    if plain.numbers:
        numbers = torch.randn(
            len(example), plain.numbers, generator=torch.Generator().manual_seed(0)
        )
        given = (example, numbers)
    facts = {
        "format": "enresnet-export-1",
        "noise": noise,
        "numbers": str(plain.numbers),
        "classes": json.dumps(list(classes)),
        "images": f"N x {' x '.join(map(str, example.shape[1:]))} in [0, 1]",
    }
    with atomic_write(target) as temporary, warnings.catch_warnings():
        # torch warns of what its own exporter does.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        write = _write_onnx if chosen == "onnx" else _write_program
        write(plain, given, temporary, facts)
        difference = _difference(plain, given, temporary, chosen, noise)
    return Exported(target, chosen, noise, plain.numbers, difference)


def _program(plain: WithoutStreams, given: tuple[Tensor, ...]) -> Any:
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in ("images", "noise")[: len(given)]}
    try:
        return torch.export.export(plain, given, dynamic_shapes=shapes)
    except Exception as error:  # whatever torch cannot follow
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"model cannot be exported: {reason}") from error


def _write_program(
    plain: WithoutStreams, given: tuple[Tensor, ...], path: Path, facts: dict[str, str]
) -> None:
    extra = {"enresnet.json": json.dumps(facts)}
    with path.open("wb") as file:
        torch.export.save(_program(plain, given), file, extra_files=extra)


def _write_onnx(
    plain: WithoutStreams, given: tuple[Tensor, ...], path: Path, facts: dict[str, str]
) -> None:
    for name in ("onnx", "onnxscript"):
        needs("format='onnx'", name, "export")
    names = ["images", "noise"][: len(given)]
    program = torch.onnx.export(
        _program(plain, given),
        (),
        input_names=names,
        output_names=["logits"],
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(facts)
    program.save(path, external_data=False)


@torch.no_grad()
def _difference(
    plain: WithoutStreams,
    given: tuple[Tensor, ...],
    path: Path,
    chosen: ExportFormat,
    noise: ExportedNoise,
) -> float | None:
    """Return how far the file's logits are from the model's; raise where it is another function."""
    if chosen == "onnx":
        if importlib.util.find_spec("onnxruntime") is None:
            return None
        found = _run_onnx(path, given)
    else:
        with path.open("rb") as file:
            found = torch.export.load(file).module()(*given)
    expected = plain(*given)
    spread = float((expected - expected.mean(dim=1, keepdim=True)).abs().mean()) or 1.0
    difference = float((found - expected).abs().max()) / spread
    if noise != "drawn" and not difference < CLOSE:
        raise ValueError(
            f"the exported file does not give the model's logits: they differ by {difference:.3g} "
            "of their spread"
        )
    return difference


def open_onnx(path: str | os.PathLike[str]) -> Any:
    """Open an ONNX file in onnxruntime, with fresh noise where the file draws some.

    onnxruntime seeds what a graph draws alike in all sessions of a process; this seeds it anew from
    the system's entropy first, for all sessions that come after.

    Args:
        path: The file.

    Returns:
        The ``onnxruntime.InferenceSession``, on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: onnxruntime is not installed.

    Example::

        from enresnet.publish import open_onnx

        try:
            session = open_onnx("model.onnx")
            logits = session.run(None, {"images": images.numpy()})[0]
        except (FileNotFoundError, ImportError) as error:
            print(error)
    """
    content = Path(path).read_bytes()
    needs("open_onnx", "onnxruntime", "export")
    import onnxruntime

    onnxruntime.set_seed(secrets.randbits(31))
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def _run_onnx(path: Path, given: tuple[Tensor, ...]) -> Tensor:
    session = open_onnx(path)
    names = ("images", "noise")
    (logits,) = session.run(
        None, {name: value.numpy() for name, value in zip(names, given, strict=False)}
    )
    return torch.from_numpy(logits)
