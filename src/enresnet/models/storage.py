"""Weights on disk: one safetensors file with all that is needed to build the model again.

The header carries a description of the model as JSON: what it is made of and with which
hyper-parameters, and a SHA-256 digest of it and of the tensors. The same weights give the same
bytes. No pickle is written or read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.reading import regular_file
from enresnet.models.architecture import Architecture
from enresnet.models.conversion.noisy import with_noise
from enresnet.models.conversion.residuals import Residual, Residuals
from enresnet.models.ensemble import Ensemble
from enresnet.models.external import ExternalNetwork, NetworkSource
from enresnet.models.noise import NoiseStream, noise_modules, seed_noise
from enresnet.models.pretrained import find_pretrained
from enresnet.models.resnet import ResNet

FORMAT = "enresnet-model-1"


def save_model(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model's weights and description to a safetensors file.

    The file has all that :func:`load_model` needs. The same weights give the same bytes. The file
    is written whole or not at all.

    Args:
        model: A model of this package, as :func:`create_model`, :func:`feynman_kac` and
            :class:`Ensemble` make it.
        path: The file; one that exists is replaced.

    Raises:
        TypeError: The model is not of this package.
        ValueError: The noise differs between the blocks of a network.
        OSError: The file cannot be written.

    Example::

        enresnet.save_model(enresnet.create_model("en3_resnet8"), "model.safetensors")
    """
    text = json.dumps(describe(model))
    # clone: safetensors refuses tensors that share memory, as those of a repeated member do.
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }
    header = {"format": FORMAT, "model": text, "sha256": content_digest(tensors, text)}
    with atomic_write(path) as temporary:
        temporary.write_bytes(stable_bytes(tensors, header))  # whose errors are the system's own


def load_model(
    path: str | os.PathLike[str],
    *,
    generator: torch.Generator | None = None,
    network: nn.Module | None = None,
    trust_code: bool = False,
) -> ResNet | ExternalNetwork | Ensemble:
    """Return the model in a file of :func:`save_model`, or one that comes with the package.

    The file's digest is checked. Weights stored below float32 are widened to it. The file itself
    holds no code, and no code is run that it names, unless ``trust_code`` says so.

    Args:
        path: A file of :func:`save_model`, or the name of weights that come with the package, such
            as ``"en3_resnet8@digits"``; :func:`~enresnet.models.list_pretrained` lists them.
        generator: Draws the noise. By default it starts from the system's entropy.
        network: The network that was handed to :func:`feynman_kac`, with any weights, if it was
            not made by :func:`create_model`: the file does not tell how it is built.
        trust_code: True imports and calls the function, ``module.path:name``, that builds the
            network by the file's description.

    Returns:
        The model with its weights, on the CPU and in evaluation mode.

    Raises:
        FileNotFoundError: There is no such file.
        IsADirectoryError: ``path`` is a folder; for that of a run the error names the file in it.
        ValueError: The file is damaged or was not written by :func:`save_model`, or no such weights
            come with the package; or it names code, or needs ``network``.
        ImportError: The library that its network comes from is not installed.

    Example::

        import torch

        generator = torch.Generator().manual_seed(0)
        model = enresnet.load_model("en3_resnet8@digits", generator=generator)
    """
    target = Path(path)
    if "@" in str(path) and not target.exists():
        target = find_pretrained(str(path)).path
    if target.is_dir():
        inside = target / "best.safetensors"
        raise IsADirectoryError(
            f"{target} is a folder, not a file of weights"
            + (f": a run's network is in {inside}" if inside.is_file() else "")
        )
    if not target.exists():
        raise FileNotFoundError(
            f"no model at {target}; weights that come with the package are named NETWORK@DATA, as "
            "enresnet.list_pretrained() lists them"
        )
    regular_file(target)  # a pipe would never end
    try:
        with safe_open(target, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{target} is not a whole safetensors file: {error}") from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{target} was not written by enresnet.save_model as {FORMAT!r} (its format is "
            f"{header.get('format')!r}); build the model with create_model and load the tensors "
            "with load_state_dict"
        )
    # Files of earlier versions carry no digest.
    if "sha256" in header and header["sha256"] != content_digest(tensors, header.get("model", "")):
        raise ValueError(
            f"{target} is damaged: its content does not match its digest; take a copy, or train "
            "it again"
        )
    try:
        description = checked_description(json.loads(header.get("model", "null")))
        code = _code_in(description)
        if code and not trust_code:
            raise _UntrustedError(
                f"{target} names code that builds its network, {code}: it would be imported and "
                "run. If you trust it, say trust_code=True, or --trust-code"
            )
        _check_size(description, tensors)
        model = rebuild(description, network)
        _take_types(model, tensors)
        model.load_state_dict(tensors)
    except _UntrustedError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        words = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{target} does not describe a model we can build: {words}") from error
    if generator is not None:
        seed_noise(model, generator)
    return model.eval()


def _take_types(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Compute in the type of the stored parameters, but no less than float32.

    A buffer of a wider type, such as a temperature in float64, says nothing of the rest: it alone
    keeps its type.
    """
    dtype = torch.float32
    for name, _ in model.named_parameters():
        if name in tensors and tensors[name].is_floating_point():
            dtype = torch.promote_types(dtype, tensors[name].dtype)
    model.to(dtype)
    for name, buffer in list(model.named_buffers()):
        if name in tensors and tensors[name].is_floating_point():
            wider = torch.promote_types(dtype, tensors[name].dtype)
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, buffer.to(wider))


class _UntrustedError(ValueError):
    """A file that names code."""


def content_digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 digest of tensors, in the order of their names, and of a text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def stable_bytes(tensors: dict[str, Tensor], header: dict[str, str]) -> bytes:
    """Return the content of a safetensors file, the same whenever tensors and header are.

    The library puts the tensors in order and leaves the keys of the header to chance.
    """
    content = save(tensors, header)
    end = 8 + int.from_bytes(content[:8], "little")
    fields = json.loads(content[8:end])
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors after it stay aligned
    return len(text).to_bytes(8, "little") + text + content[end:]


def describe(model: nn.Module) -> dict[str, Any]:
    """Return what :func:`rebuild` needs, as plain JSON."""
    if isinstance(model, ResNet):
        return {"resnet": model.config}
    if isinstance(model, ExternalNetwork):
        return {"external": {**model.config, "noise": _noise_of(model)}}
    if isinstance(model, Ensemble):
        return {"ensemble": model.config, "members": [describe(member) for member in model.members]}
    raise TypeError(
        "model must be made by enresnet.create_model or enresnet.feynman_kac to be stored, found "
        f"{type(model).__module__}.{type(model).__name__}; store its state_dict() with safetensors "
        "instead"
    )


def checked_description(description: Any) -> dict[str, Any]:
    """Return a description if all is there that :func:`rebuild` needs.

    Raises:
        ValueError: It is not what :func:`describe` returns.
    """
    kinds = ({"resnet"}, {"external"}, {"ensemble", "members"})
    if not isinstance(description, dict) or set(description) not in kinds:
        raise ValueError(
            "a description holds resnet, external, or ensemble and members; found "
            f"{checks.brief(description)}"
        )
    for kind, needed in _NEEDED.items():
        config = description.get(kind, dict.fromkeys(needed))
        if not isinstance(config, dict) or not set(needed) <= set(config):
            words = f" with {', '.join(needed)}" if needed else ""
            raise ValueError(f"{kind} must be a mapping{words}; found {checks.brief(config)}")
    members = description.get("members", [])
    if not isinstance(members, list):
        raise ValueError(f"members must be a list, found {checks.brief(members)}")
    for member in members:
        checked_description(member)
    return description


def rebuild(
    description: dict[str, Any], network: nn.Module | None = None
) -> ResNet | ExternalNetwork | Ensemble:
    """Return the model that :func:`describe` described, with fresh weights.

    ``network`` is copied where the description does not say how a network is built.
    """
    if "resnet" in description:
        return ResNet(**description["resnet"])
    if "external" in description:
        return _rebuild_external(description["external"], network)
    members = [rebuild(member, network) for member in description["members"]]
    return Ensemble(members, **description["ensemble"])


def _rebuild_external(config: dict[str, Any], network: nn.Module | None) -> ExternalNetwork:
    values = dict(config)
    noise, kind, source = values.pop("noise"), values.pop("kind"), values.pop("source")
    if source is None:
        if network is None:
            raise ValueError(
                f"only its owner knows how its network, {checks.brief(kind)}, is built: hand it "
                "over, load_model(path, network=...)"
            )
        inner = copy.deepcopy(network)
        model = ExternalNetwork(inner, **values)
    else:
        origin = NetworkSource(**source)
        model = ExternalNetwork(origin.build(try_it=False), origin, **values)
    model.kind = str(kind)
    if noise is None:
        return model
    places = tuple(_residual(*place) for place in noise["residuals"])
    residuals = Residuals(places, {str(k): str(v) for k, v in noise["skipped"].items()})
    level, std_over = checks.number("noise", noise["noise"], low=0), noise["std_over"]
    noisy = with_noise(model.network, residuals, level, std_over, NoiseStream())
    return model.with_network(noisy, residuals)


def _noise_of(model: ExternalNetwork) -> dict[str, Any] | None:
    """Return where a network that is not ours has noise, and how much; None for nowhere."""
    if model.residuals is None:
        return None
    levels = {(place.noise, place.std_over) for place in noise_modules(model)}
    if len(levels) != 1:
        raise ValueError(
            "the noise differs between the residual mappings of a network; to be stored it must be "
            f"the same, found {sorted(levels)}"
        )
    noise, std_over = levels.pop()
    return {
        "noise": noise,
        "std_over": std_over,
        "residuals": [_place(residual) for residual in model.residuals.found],
        "skipped": dict(model.residuals.skipped),
    }


def _place(residual: Residual) -> list[Any]:
    """Return where a residual mapping is, without what has its default."""
    place = [residual.module, residual.kind, residual.number]
    if residual.left_out:
        return [*place, residual.uses, list(residual.left_out)]
    return [*place, residual.uses] if residual.uses > 1 else place


def _residual(
    module: str, kind: str, number: int | None, uses: int = 1, left_out: Sequence[str] = ()
) -> Residual:
    return Residual(module, kind, number, uses, tuple(str(name) for name in left_out))


def _code_in(description: dict[str, Any]) -> str:
    """Return the code that a description names; "" if none."""
    if "members" in description:
        return next(filter(None, map(_code_in, description["members"])), "")
    source = description.get("external", {}).get("source")
    origin = None if source is None else NetworkSource(**source)
    return origin.source if origin is not None and origin.is_code else ""


def _check_size(description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a description of a network larger than the tensors that come with it.

    Networks are built before their weights are filled in, so a few bytes could ask for any memory.
    """
    layers, numbers = _needed(description)
    stored = sum(tensor.numel() for tensor in tensors.values())
    if layers > len(tensors) or numbers > stored:
        raise ValueError(
            f"the network is larger than the tensors that come with it: it has at least {layers} "
            f"tensors with {numbers} numbers, found {len(tensors)} with {stored}"
        )


def _needed(description: dict[str, Any]) -> tuple[int, int]:
    """Return how many tensors a description asks for at least, and how many numbers in them."""
    if "members" in description:
        parts = [_needed(member) for member in description["members"]]
        return sum(layers for layers, _ in parts), sum(numbers for _, numbers in parts)
    if "external" in description:
        source = description["external"]["source"]
        return (0, 0) if source is None else NetworkSource(**source).size()
    network = description["resnet"]
    sides = {name: checks.integer(name, network[name], low=1) for name in _SIDES}
    widths = tuple(checks.integer("widths", width, low=1) for width in network["widths"])
    deep = network.get("block") == "bottleneck"
    shape = Architecture(sides["blocks"], widths, "bottleneck" if deep else "basic")
    # Of a block: its convolutions, and five tensors a BatchNorm.
    layers = 2 + len(widths) * sides["blocks"] * (18 if deep else 12)
    numbers = shape.parameters(num_classes=sides["num_classes"], in_channels=sides["in_channels"])
    return layers, numbers


_SIDES = ("blocks", "num_classes", "in_channels")
_NEEDED = {
    "resnet": (*_SIDES, "widths"),
    "external": ("source", "kind", "noise"),
    "ensemble": (),
}
