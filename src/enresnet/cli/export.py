"""``enresnet export RUN``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from enresnet.cli.model_source import open_model
from enresnet.cli.output import check_outputs, say
from enresnet.common.requirements import extras, install_command


def command(
    model: tyro.conf.Positional[str],
    *,
    format: Literal["onnx", "pt2"] | None = None,
    noise: Literal["off", "input", "drawn"] = "off",
    out: Path | None = None,
    data: str | None = None,
    size: int | None = None,
    checkpoint: str = "best",
    trust_code: bool = False,
) -> None:
    """Write a trained network to a file that other runtimes load, and try the file.

    It takes images in [0, 1], N x C x H x W for any N, and gives logits.

    Args:
        model: A run's folder, a safetensors file, or the name of weights in the package.
        format: onnx, or pt2 for torch.export; by default what out ends with, else onnx.
        noise: off leaves the noise out; input takes it as a second input of standard normal
            numbers, so that answers can be repeated; drawn lets the runtime draw it in every call.
        out: The file; by default MODEL.onnx or MODEL.pt2 in the run's folder, or here; with noise,
            MODEL-noise-input.onnx or MODEL-noise-drawn.onnx.
        data: Take the shape of these images, a name or a folder; by default the run's own.
        size: Or of squares with this side in pixels.
        checkpoint: Of a run: best or last.
        trust_code: Import and run the code that a run names as its network, module.path:name.
    """
    import torch

    from enresnet.publish import export_model

    source = open_model(model, checkpoint=checkpoint, trust_code=trust_code)
    network = source.model
    if not isinstance(network, torch.nn.Module):
        raise TypeError(f"{model} must be a network, found {type(network).__name__}")
    if format is None:
        format = "pt2" if out is not None and out.suffix == ".pt2" else "onnx"
    if out is None:
        folder = Path() if source.run is None else source.run.folder
        name = source.name.replace(":", "-") + ("" if noise == "off" else f"-noise-{noise}")
        out = folder / f"{name}.{format}"
    check_outputs(out)
    example = source.example(data, size)
    written = export_model(
        network, out, format=format, noise=noise, example=example, classes=source.classes
    )
    shape = " x ".join(map(str, example.shape[1:]))
    inputs = f"images, N x {shape} in [0, 1]"
    if written.numbers:
        inputs += f", and noise, N x {written.numbers} standard normal numbers"
    if written.difference is None:
        tried = f"not tried: onnxruntime is not there, {install_command(extras()['export'])}"
    elif noise == "drawn":
        tried = "tried: it runs, and draws its noise in every call"
    else:
        tried = f"tried: its logits are the network's, but for {written.difference:.1e} of them"
    say(f"{written.path} takes {inputs}; {tried}")
    if noise == "drawn" and format == "onnx":
        say(
            "onnxruntime draws the same noise in every new session of a process: open the file by "
            "enresnet.publish.open_onnx or, without enresnet, call "
            "onnxruntime.set_seed(secrets.randbits(31)) before you open a session"
        )
