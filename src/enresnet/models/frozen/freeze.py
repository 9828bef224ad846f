"""A model held still: in evaluation mode, its parameters without gradient, one thread at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from enresnet.models.frozen.networks import fast_call
from enresnet.models.interface import Model, logits_of, module_of
from enresnet.models.normalized import Normalized


class ThreadsError(RuntimeError):
    """Two threads would wait for each other's models for ever."""


@contextmanager
def frozen(
    model: Model, *, evaluating: bool = True, few: Tensor | None = None
) -> Iterator[Callable[[Tensor], Any]]:
    """Freeze ``model`` inside a ``with`` block, and yield the fastest way to call it.

    Inside, the model is in evaluation mode and its parameters have no gradient. Each module gets
    its own training flag back after, and each parameter its own ``requires_grad``, whatever
    happens. A network whose own ``train`` keeps a part in training mode, as for dropout at test
    time, is called as it is. BatchNorm statistics are as before. Modules inside a callable are met,
    and frozen, when it first calls them. A module that another thread has frozen is waited for: two
    that froze it at once would put back what they took from each other.

    What is yielded for our own networks has BatchNorm folded into the convolutions and, on the CPU,
    runs in fused code, with the weights of the moment: they must not change inside the block. It
    draws from the model's own noise stream, but not the numbers that ``forward`` would draw.

    Other models are called as they are, unless ``few`` images are given: then a module whose
    ``forward`` torch.fx can follow, and that is made of operations known to answer twice the same,
    is folded too, and compared with itself on these images. Its logits are those of ``forward`` but
    for rounding. Where that cannot be, it is called as it is, and the log "enresnet" says why.

    Args:
        model: An ``nn.Module`` or any callable from images in [0, 1] to logits.
        evaluating: False leaves the mode, and so the statistics of a model in training, alone.
        few: Images to try a network on that is not ours, for long work; None calls it as it is.

    Shape:
        - few: N x C x H x W in [0, 1], as the model takes them
        - images: N x C x H x W in [0, 1], as the model takes them
        - result of the yielded callable: logits N x classes

    Returns:
        A context manager that yields a callable from images to logits; where the model returns no
        logits, what it returned, for the caller to refuse.

    Raises:
        ThreadsError: Another thread holds part of the model and waits for what this one holds.

    Example::

        import torch

        with enresnet.frozen(model) as call, torch.no_grad():
            right = call(images).argmax(dim=1) == labels
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
                yield fast_call(model, few) or _Logits(model)
        finally:
            if hook is not None:
                hook.remove()
    finally:
        freezer.thaw()


class _Logits:
    """A model as it is, and the logits in what it returns."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, images: Tensor) -> Any:
        return logits_of(self._model(images))


def _calls_a_function(root: nn.Module) -> bool:
    """Return whether a network hands images to a function, whose modules are met when called."""
    return any(
        isinstance(part, Normalized) and not isinstance(part.model, nn.Module)
        for part in root.modules()
    )


def _evaluate(root: nn.Module) -> None:
    """Put a module in evaluation mode as its user would: its own ``train`` decides what that is."""
    try:
        root.eval()
    except NotImplementedError:  # as of programs by torch.export
        for module in root.modules():
            module.training = False


class _Freezer:
    """Remembers the modules it froze and what they were."""

    def __init__(self, evaluating: bool) -> None:
        self._evaluating = evaluating
        self._thread = threading.get_ident()
        self._held: list[nn.Module] = []
        self._flags: dict[nn.Module, bool] = {}
        self._parameters: dict[Tensor, None] = {}
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []

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
        if self._evaluating and modules:
            _evaluate(root)
            self._keep_buffers(modules)
        for parameter in root.parameters():
            # A parameter made in inference mode has no gradient to switch off.
            if parameter.requires_grad and parameter.is_leaf and not parameter.is_inference():
                self._parameters[parameter] = None
                parameter.requires_grad_(False)

    def _keep_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Remember the statistics of modules that their network keeps in training mode."""
        for module in modules:
            if module.training:
                for name, buffer in module.named_buffers(recurse=False):
                    self._buffers.append((module, name, buffer, buffer.detach().clone()))

    def thaw(self) -> None:
        """Put everything back, and let other threads have it."""
        try:
            for module, flag in self._flags.items():
                module.training = flag
            for parameter in self._parameters:
                parameter.requires_grad_(True)
            for module, name, buffer, value in self._buffers:
                with torch.no_grad(), torch.inference_mode(buffer.is_inference()):
                    module._buffers[name] = buffer.copy_(value)
        finally:
            HOLDERS.release(self._held)


class _Holders:
    """Which thread holds which modules. One at a time; it may take the same module again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]]
        self._threads = weakref.WeakKeyDictionary()  # its thread, and how many times over
        self._awaited: dict[int, int] = {}  # the thread that each waiting thread waits for

    def acquire(self, modules: Sequence[nn.Module]) -> None:
        """Take all the modules for this thread, when all are free."""
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
