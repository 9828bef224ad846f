r"""The gradient with respect to the images, averaged over the model's own noise (EOT).

.. math:: g(x) = \frac{1}{k} \sum_{j=1}^{k} \nabla_x L(f(x; \text{noise}_j), y)

The mean of k gradients, not the gradient at the mean of k outputs: the expected loss is what the
attacker of a randomised model raises (Sec. 4 uses k = 5). Nothing but the images' gradient is
computed, and the model is left as it was.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

Model = Callable[[Tensor], Tensor]
"""An ``nn.Module`` or any callable from images in [0, 1] to logits N x classes."""


class NoGradientError(ValueError):
    """A model's output does not depend on the images, as far as torch can tell."""


def expected_gradient(loss: Callable[[Tensor], Tensor], point: Tensor, eot: int = 1) -> Tensor:
    """Return the gradient of ``loss`` at ``point``, averaged over ``eot`` draws of its noise.

    ``loss`` gives one number an example. Examples do not meet: the losses are summed, so each
    one's gradient is its own.
    """
    total: Tensor | None = None
    for _ in range(eot):
        leaf = point.detach().requires_grad_()
        value = loss(leaf).sum()
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
        if gradient is None:
            raise NoGradientError(
                "model gives no gradient: its output does not depend on the images through torch "
                "operations; was it computed under torch.no_grad, or with numpy?"
            )
        # Not in place: a gradient may be an expanded view, as that of a mean is.
        total = gradient if total is None else total + gradient
    assert total is not None
    return total / eot if eot > 1 else total


@contextmanager
def frozen(model: Model, *, evaluating: bool = True) -> Iterator[None]:
    """Run ``model`` in evaluation mode, its parameters without gradient, and put all back after.

    Each module gets its own training flag back and each parameter its own ``requires_grad``,
    whatever happens inside. BatchNorm statistics do not move, since nothing trains. Modules inside
    a callable are met, and frozen, when it first calls them. ``evaluating=False`` leaves the mode,
    and so the statistics of a model in training, alone.
    """
    freezer = _Freezer(evaluating)
    try:
        if (root := module_of(model)) is not None:
            freezer.freeze(root)
            hook = None
        else:
            hook = register_module_forward_pre_hook(freezer.on_call)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            if hook is not None:
                hook.remove()
    finally:
        freezer.thaw()


def module_of(model: object) -> nn.Module | None:
    """Return the module that ``model`` is, or whose method it is."""
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    return owner if isinstance(owner, nn.Module) else None


class _Freezer:
    """Remembers the modules it froze and what they were."""

    def __init__(self, evaluating: bool) -> None:
        self._evaluating = evaluating
        self._thread = threading.get_ident()
        self._flags: dict[nn.Module, bool] = {}
        self._parameters: dict[Tensor, None] = {}

    def on_call(self, module: nn.Module, _: object) -> None:
        """Freeze a module about to be called; the hook is global, other threads' are not ours."""
        if module not in self._flags and threading.get_ident() == self._thread:
            self.freeze(module)

    def freeze(self, root: nn.Module) -> None:
        """Freeze a module and all within it."""
        for module in root.modules():
            self._flags.setdefault(module, module.training)
            if self._evaluating:
                module.training = False
        for parameter in root.parameters():
            # A parameter made in inference mode has no gradient to switch off.
            if parameter.requires_grad and parameter.is_leaf and not parameter.is_inference():
                self._parameters[parameter] = None
                parameter.requires_grad_(False)

    def thaw(self) -> None:
        """Put everything back."""
        for module, flag in self._flags.items():
            module.training = flag
        for parameter in self._parameters:
            parameter.requires_grad_(True)
