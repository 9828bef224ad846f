r"""The gradient with respect to the images, averaged over the model's own noise (EOT).

.. math:: g(x) = \frac{1}{k} \sum_{j=1}^{k} \nabla_x L(f(x; \text{noise}_j), y)

The mean of k gradients, not the gradient at the mean of k outputs: the expected loss is what the
attacker of a randomised model raises (Sec. 4 uses k = 5). Nothing but the images' gradient is
computed, and the model is left as it was.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from enresnet.models import Normalized

Model = Callable[[Tensor], Tensor]
"""An ``nn.Module`` or any callable from images in [0, 1] to logits N x classes.

What holds the logits will do, as :func:`logits_of` tells.
"""


def logits_of(output: object) -> Any:
    """Return the logits in what a model returns.

    They are the output itself, its attribute ``logits``, its entry ``"logits"``, or the first of a
    tuple. What holds none is returned as it is, for the caller to refuse.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(found := getattr(output, "logits", None), Tensor):
        return found
    if isinstance(output, Mapping) and isinstance(found := output.get("logits"), Tensor):
        return found
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    return output


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


class ThreadsError(RuntimeError):
    """Two threads would wait for each other's models for ever."""


@contextmanager
def frozen(model: Model, *, evaluating: bool = True) -> Iterator[None]:
    """Run ``model`` in evaluation mode, its parameters without gradient, and put all back after.

    Each module gets its own training flag back and each parameter its own ``requires_grad``,
    whatever happens inside. BatchNorm statistics do not move, since nothing trains. Modules inside
    a callable are met, and frozen, when it first calls them. ``evaluating=False`` leaves the mode,
    and so the statistics of a model in training, alone. A module that another thread has frozen is
    waited for: two that froze it at once would put back what they took from each other.
    """
    freezer = _Freezer(evaluating)
    try:
        hook = None
        if (root := module_of(model)) is not None:
            freezer.freeze(root)
        if root is None or _calls_a_function(root):
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


def _calls_a_function(root: nn.Module) -> bool:
    """Return whether a network hands images to a function, whose modules are met when called."""
    return any(
        isinstance(part, Normalized) and not isinstance(part.model, nn.Module)
        for part in root.modules()
    )


class _Freezer:
    """Remembers the modules it froze and what they were."""

    def __init__(self, evaluating: bool) -> None:
        self._evaluating = evaluating
        self._thread = threading.get_ident()
        self._held: list[nn.Module] = []
        self._flags: dict[nn.Module, bool] = {}
        self._parameters: dict[Tensor, None] = {}

    def on_call(self, module: nn.Module, _: object) -> None:
        """Freeze a module about to be called; the hook is global, other threads' are not ours."""
        if module not in self._flags and threading.get_ident() == self._thread:
            self.freeze(module)

    def freeze(self, root: nn.Module) -> None:
        """Freeze a module and all within it, once no other thread has."""
        modules = [module for module in root.modules() if module not in self._flags]
        HOLDERS.acquire(modules)
        self._held += modules
        for module in modules:
            self._flags.setdefault(module, module.training)
            if self._evaluating:
                module.training = False
        for parameter in root.parameters():
            # A parameter made in inference mode has no gradient to switch off.
            if parameter.requires_grad and parameter.is_leaf and not parameter.is_inference():
                self._parameters[parameter] = None
                parameter.requires_grad_(False)

    def thaw(self) -> None:
        """Put everything back, and let other threads have it."""
        try:
            for module, flag in self._flags.items():
                module.training = flag
            for parameter in self._parameters:
                parameter.requires_grad_(True)
        finally:
            HOLDERS.release(self._held)


class _Holders:
    """Which thread holds which modules: one at a time, the same one as often as it likes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]]
        self._threads = weakref.WeakKeyDictionary()  # its thread, and how many times over
        self._awaited: dict[int, int] = {}  # the thread that each waiting thread waits for

    def acquire(self, modules: Sequence[nn.Module]) -> None:
        """Take all the modules for this thread, when all can be had."""
        here = threading.get_ident()
        with self._changed:
            try:
                while (other := self._other(modules, here)) is not None:
                    self._awaited[here] = other
                    self._refuse_a_circle(here)
                    self._changed.wait()
            finally:
                self._awaited.pop(here, None)
            for module in modules:
                _, times = self._threads.get(module, (here, 0))
                self._threads[module] = (here, times + 1)

    def release(self, modules: Sequence[nn.Module]) -> None:
        """Give the modules back."""
        with self._changed:
            for module in modules:
                thread, times = self._threads.pop(module)
                if times > 1:
                    self._threads[module] = (thread, times - 1)
            self._changed.notify_all()

    def _other(self, modules: Sequence[nn.Module], here: int) -> int | None:
        """Return a thread that holds one of the modules, if it is not this one."""
        if not self._threads:
            return None
        found = (self._threads.get(module, (here, 0))[0] for module in modules)
        return next((thread for thread in found if thread != here), None)

    def _refuse_a_circle(self, here: int) -> None:
        """Raise where the thread that is waited for waits, at last, for this one."""
        thread = self._awaited[here]
        while thread != here:
            if thread not in self._awaited:
                return
            thread = self._awaited[thread]
        raise ThreadsError(
            "model is attacked from two threads, each of which waits for a network that the other "
            "uses; give each thread a copy of the model (copy.deepcopy), or attack from one thread"
        )


HOLDERS = _Holders()
