"""Convolutions whose stride is larger than their input: some weights see no pixel.

Their gradient is 0. On a CPU in bfloat16, oneDNN leaves it unset instead (seen in torch 2.13): the
weights get whatever the memory held, a training is not repeatable and may end in NaN. Float32 is
not concerned, nor is the gradient of the input.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from enresnet.training.memory import activation_bytes


def outstripped_convolution(model: nn.Module, images: Tensor) -> str:
    """Return the name of a convolution with a stride larger than its input's side; "" if none."""
    found: list[str] = []

    def note(name: str) -> Any:
        def look(module: nn.Conv2d, inputs: tuple[Tensor, ...], _: Any) -> None:
            sides = zip(inputs[0].shape[2:], module.stride, strict=True)
            if any(side < stride for side, stride in sides):
                found.append(name)

        return look

    hooks = [
        module.register_forward_hook(note(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and max(module.stride) > 1
    ]
    try:
        if hooks:
            activation_bytes(model, images)  # a pass as in training, which leaves no trace
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def wrong_in_bfloat16(model: nn.Module, images: Tensor) -> str:
    """Return in words whose gradients torch computes wrongly in bfloat16 on a CPU; "" if none."""
    if images.device.type != "cpu" or not (name := outstripped_convolution(model, images)):
        return ""
    height, width = images.shape[2:]
    return (
        f"in bf16 torch computes wrong gradients of {name} on a CPU, whose stride is larger than "
        f"the input that images of {height} x {width} leave it"
    )


def check_strides(model: nn.Module, images: Tensor, precision: str) -> None:
    """Refuse a training in which torch would compute wrong gradients."""
    if precision == "bf16" and (why := wrong_in_bfloat16(model, images)):
        raise ValueError(
            f"precision is bf16, and {why}; take precision 32, larger images, or a network with "
            "fewer strides"
        )
