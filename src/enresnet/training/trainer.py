"""The training loop (Algorithm 1): batches, one objective, SGD, a validation after each epoch.

Every random choice of a step is seeded by the run's seed, the step and the process. So a training
that resumes from a stored state takes the same steps as one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.randomness import named_generator, named_seed, torch_seeded
from enresnet.data import DataSet
from enresnet.evaluation import score
from enresnet.models.noise import NoiseStream, share_stream
from enresnet.training.averaging import WeightAverage
from enresnet.training.awp import default_gamma, perturbed_weights
from enresnet.training.batches import TrainingBatches
from enresnet.training.collapse_guard import CollapseGuard
from enresnet.training.curriculum import recipe_at, why_not_halved
from enresnet.training.engine import CraftedBatch, Engine, ObjectiveLoss
from enresnet.training.events import Epoch, Progress, Step
from enresnet.training.joint import LearnedWeights, compensate
from enresnet.training.memory import choose_memory
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.recipe import Recipe
from enresnet.training.state import NetworkState, TrainerState
from enresnet.training.strides import check_strides
from enresnet.training.teacher import answers_digest, teacher_answers
from enresnet.training.validation import Validation, validate

ADVICE = "start another run with a smaller learning_rate"
GLANCE = 20  # steps between two looks at the natural accuracy of a batch


class Trainer:
    """Trains a network in memory: iterate over :meth:`epochs`. :func:`train` writes a run folder.

    Between two epochs :attr:`result`, the network that is validated and kept, may be saved or
    evaluated. The model keeps the noise it has: the recipe's ``noise`` and ``std_over`` are for the
    networks that :meth:`RunConfig.create_model` makes from a name.

    Args:
        model: The network, on images in [0, 1]; it is trained in place.
        data: Training and validation images, and how they are augmented.
        recipe: How the network is trained.
        seed: Fixes every random choice but the model's weights; 0 by default.
        engine: Device, precision and processes; by default one process in float32, on the model's
            device.
        stop_asked: Called after every step; returns the number of a signal that asks to stop, or 0.
            :attr:`Step.stop` passes the signal of one process on to all.
        trust_code: True imports and runs the code that builds the recipe's teacher, where it names
            some.

    Attributes:
        model: The network in training.
        validation: The scores of the last epoch's validation; None if it was not validated.
        collapsed: Whether a one-step attack was overfitted, so that training went on with PGD.

    Raises:
        MemoryError: A step would not fit into memory; the error says what would.
        ValueError: There are fewer training images than processes.

    Example::

        from enresnet.training import Trainer

        data = enresnet.load_data("digits", limit=100)
        model = enresnet.create_model("en2_resnet8", in_channels=1)
        trainer = Trainer(model, data, enresnet.load_recipe("natural", epochs=1))
        history = list(trainer.epochs())
    """

    def __init__(
        self,
        model: nn.Module,
        data: DataSet,
        recipe: Recipe,
        *,
        seed: int = 0,
        engine: Engine | None = None,
        stop_asked: Callable[[], int] = lambda: 0,
        trust_code: bool = False,
    ) -> None:
        self._stop_asked = stop_asked
        self.engine = Engine.for_model(model) if engine is None else engine
        if self.engine.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model, self.data, self.recipe, self._seed = model, data, recipe, seed
        self._batches = TrainingBatches(data, recipe, engine=self.engine, seed=seed)
        self._attack = torch.Generator()
        self._noise = NoiseStream(named_generator(seed, "noise"))
        share_stream(model, self._noise)
        self._plan = recipe  # another one after a collapse
        self._now = recipe_at(recipe, 0.0)
        self.objective = OBJECTIVES[self._now.objective](self._now, self._attack)
        self._answers = None
        if self.objective.needs_teacher:
            assert recipe.teacher is not None
            self._answers = teacher_answers(
                recipe.teacher,
                data.train,
                mirror=recipe.augment and data.augmentation.flip,
                engine=self.engine,
                seed=seed,
                trust_code=trust_code,
            )
        model.to(memory_format=self._batches.memory_format)  # type: ignore[call-overload]
        few = data.train.batch(slice(2))[0].to(self.engine.device)
        with self.engine.autocast(), torch_seeded(0, self.engine.device):
            self.recompute = choose_memory(
                model.to(self.engine.device),
                few,
                min(recipe.batch_size, len(data.train)),
                recipe.memory,
                sharing=self.engine.local,
                passes=self.objective.passes,
            )
            check_strides(model, few, self.engine.precision)
            self._never_halved = why_not_halved(model, few) if recipe.low_resolution else ""
        self._optimiser = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            weight_decay=recipe.weight_decay,
            fused=self.engine.device.type in ("cpu", "cuda"),
        )
        self._loss = ObjectiveLoss(model, self.objective)
        self._forward, self._stepper = self.engine.prepare(self._loss, self._optimiser)
        # Only now: the processes started with the weights of the first when they were prepared.
        self._average = (
            WeightAverage(model, recipe.ema, named_generator(seed, "average noise"))
            if recipe.ema > 0
            else None
        )
        self._weights = (
            LearnedWeights(model, recipe.weight_step) if recipe.weight_step > 0 else None
        )
        guarded = self.objective.one_step
        self._guard = CollapseGuard(data.validation, recipe, seed) if guarded else None
        self.collapsed = False  # once, and went on with an attack of several steps
        self.validation: Validation | None = None  # of the last epoch, if it was validated
        self.progress = Progress()
        self._natural: float | None = None

    @property
    def result(self) -> nn.Module:
        """The network that is validated and kept, the averaged one if the recipe has an ``ema``."""
        return self.model if self._average is None else self._average.model

    @property
    def selecting(self) -> bool:
        """Whether validation decides which epoch's network is kept; otherwise the last is."""
        return not self.recipe.ends_at_zero or self.collapsed

    @property
    def steps(self) -> int:
        """The number of steps of an epoch."""
        return self._batches.steps

    @property
    def steps_done(self) -> int:
        """The number of steps taken since the start."""
        return self.progress.epoch * self.steps + self.progress.step

    def epochs(self, after_step: Callable[[Step], None] = lambda _: None) -> Iterator[Epoch]:
        """Train, and yield the report of each epoch; continues after the epochs that are done.

        Args:
            after_step: Called with the report of every step.

        Raises:
            FloatingPointError: The loss is no longer finite.
        """
        while self.progress.epoch < self.recipe.epochs:
            yield self._epoch(after_step)

    @property
    def state(self) -> TrainerState:
        """All that decides how the training continues; its tensors change with the next step."""
        return TrainerState(
            network=self._network,
            guard=None if self._guard is None else self._guard.state,
            part_gradient=None if self._weights is None else self._weights.gathered,
            progress=self.progress,
            natural=self._natural,
            precision=self.engine.precision_state(),
            processes=self.engine.processes,
            teacher=answers_digest(self._answers),
        )

    def restore(self, state: TrainerState) -> None:
        """Continue from where :attr:`state` was taken."""
        if state.processes != self.engine.processes:
            raise ValueError(
                f"the run was trained by {checks.brief(state.processes)} processes and cannot "
                f"go on with {self.engine.processes}: its batches would differ"
            )
        if state.teacher != answers_digest(self._answers):
            raise ValueError(
                f"the teacher {self.recipe.teacher} answers otherwise than when the run began: was "
                "it trained further? Put the earlier weights back, or start another run"
            )
        state.network.load_into(self.model, self._averaged, self._optimiser)
        if self._guard is not None:
            if state.guard is None:
                self._go_on_with_pgd()
            else:
                self._guard.restore(state.guard)
        if self._weights is not None:
            if state.part_gradient is None:
                raise LookupError("it has no gradient of the parts' weights")
            self._weights.gathered.copy_(state.part_gradient)
        self.engine.load_precision_state(state.precision)
        progress = replace(state.progress)  # a copy: it is counted on
        if not (0 <= progress.epoch <= self.recipe.epochs and 0 <= progress.step <= self.steps):
            raise LookupError(f"it stands at step {progress.step} of epoch {progress.epoch}")
        self.progress, self._natural = progress, state.natural

    @property
    def _network(self) -> NetworkState:
        return NetworkState.of(self.model, self._averaged, self._optimiser)

    @property
    def _averaged(self) -> nn.Module | None:
        return None if self._average is None else self._average.model

    def _epoch(self, after_step: Callable[[Step], None]) -> Epoch:
        at = self.progress
        self.model.train()
        if self.recipe.reset_momentum and at.step == 0:
            self._optimiser.state.clear()
        order = self._batches.order(at.epoch)
        for number in range(at.step, len(order)):
            after_step(self._seeded_step(order[number], number, len(order)))
        ended = time.monotonic()
        if self._weights is not None:
            self._weights.step(self.engine)
            if self._average is not None:
                self._average.follow_weights(self.model)
        notes = [self._watch_for_collapse()]
        if self.engine.note and at.epoch == 0:
            notes.append(self.engine.note)
        if self._never_halved and at.epoch == 0:
            notes.append(f"low_resolution is left out: {self._never_halved}")
        weights = [] if self._weights is None else self._weights.values()
        self.validation = found = self._validate()
        robust_training = self.objective.robust
        share = at.right / at.images
        seen = at.natural_right / at.natural_images if at.natural_images else None
        epoch = Epoch(
            epoch=at.epoch + 1,
            learning_rate=self.recipe.rate_at(at.epoch, 1.0, self.steps),
            train_loss=at.loss / at.images,
            train_natural=seen if robust_training else share,
            train_robust=share if robust_training else None,
            validation_natural=None if found is None else float(found.natural.mean()),
            validation_robust=None
            if found is None or found.robust is None
            else float(found.robust.mean()),
            images_per_second=at.images / at.seconds,
            seconds=at.seconds + time.monotonic() - ended,
            weights=" ".join(f"{weight:.4f}" for weight in weights),
            note="; ".join(filter(None, notes)),
        )
        self.progress = Progress(epoch=at.epoch + 1)
        return epoch

    def _seeded_step(self, rows: Tensor, number: int, steps: int) -> Step:
        """Take a step whose draws depend on nothing but the seed and the step's number."""
        where = self._seed_step(self.progress.epoch, number)
        with torch_seeded(named_seed(self._seed, f"dropout {where}"), self.engine.device):
            return self._step(rows, number, steps)

    def _seed_step(self, epoch: int, number: int) -> str:
        """Seed our own streams for a step; return what names it."""
        where = f"{epoch} {number} {self.engine.rank}"
        self._batches.generator.manual_seed(named_seed(self._seed, f"augmentation {where}"))
        self._attack.manual_seed(named_seed(self._seed, f"attack {where}"))
        self._noise.manual_seed(named_seed(self._seed, f"noise {where}"))
        return where

    def _step(self, rows: Tensor, number: int, steps: int) -> Step:
        """Take one step of all processes; this one computes on its part of the images."""
        start, at = time.monotonic(), self.progress
        done = (at.epoch + number / steps) / self.recipe.epochs
        self._follow(recipe_at(self._plan, done))
        own = rows[self.engine.share_of(len(rows))]
        images, labels = self._batches.load(own, halve=self._halves(done))
        if self._answers is not None:
            self.objective.answers = self._answers[own].to(self.engine.device)
        rate = self.recipe.rate_at(at.epoch, (number + 1) / steps, steps)
        loss, right, stop = self._update(images, labels, len(rows), rate)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss became {loss} in epoch {at.epoch + 1}, step {number + 1}; {ADVICE}"
            )
        at.loss += loss * len(rows)
        at.right += right
        at.images += len(rows)
        if not self.objective.robust:
            self._natural = right / len(rows)
        elif number % GLANCE == 0:
            self._glance(images, labels, len(rows))
        at.step = number + 1
        at.seconds += time.monotonic() - start
        return Step(
            epoch=at.epoch + 1,
            step=at.step,
            steps=steps,
            images=len(rows),
            loss=loss,
            learning_rate=rate,
            natural=self._natural,
            robust=right / len(rows) if self.objective.robust else None,
            stop=stop,
        )

    def _halves(self, done: float) -> bool:
        """Return whether images have half the side when a fraction ``done`` is over."""
        return done < self.recipe.low_resolution and not self._never_halved

    def _follow(self, recipe: Recipe) -> None:
        """Change the objective if the recipe asks for another one from now on."""
        if recipe != self._now:
            self._now = recipe
            self.objective = self._loss.objective = OBJECTIVES[recipe.objective](
                recipe, self._attack
            )

    def _update(
        self, images: Tensor, labels: Tensor, count: int, rate: float
    ) -> tuple[float, float, int]:
        """Update the weights once.

        Return, over all processes, the loss, the number of correct predictions, and the signal
        that asks to stop.
        """
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        objective = self.objective
        # DDP takes the mean over processes; a smaller share of the images weighs less.
        share = len(images) * self.engine.processes / count
        with self.engine.autocast():
            crafted = objective.craft(self.model, images, labels)
        with ExitStack() as stack:
            if self.recipe.awp:
                with self.engine.autocast():
                    moved = perturbed_weights(
                        objective,
                        self.model,
                        (images, crafted, labels),
                        gamma=default_gamma(self.recipe),
                        reduce=lambda gradient: self.engine.sum_over_processes(gradient * share),
                    )
                    stack.enter_context(moved)
            # Only this forward pass counts: lean memory runs the members again for gradients.
            with nullcontext() if self._weights is None else self._weights.recording(crafted):
                loss, logits = self._forward(CraftedBatch(images, crafted, labels))
            self._stepper.zero_grad()
            self.engine.backward(loss * share)
        if self.recipe.compensate:
            compensate(self.model)
        right = (logits.argmax(dim=1) == labels).sum()
        total, hits, stop = self._exchange(loss.detach() * len(images), right)
        if not math.isfinite(total):
            return total, hits, stop  # before the weights are touched
        if self._weights is not None:
            self._weights.gather(labels)
        self._stepper.step()
        if self._average is not None:
            self._average.update(self.model, self.steps_done)
        return total / count, hits, stop

    def _exchange(self, loss: Tensor, right: Tensor) -> tuple[float, float, int]:
        """Return both summed over the processes; BatchNorm statistics become their mean."""
        stop = self._stop_asked()
        if self.engine.processes == 1:
            return loss.item(), right.item(), stop
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        own = torch.stack([loss, right, *(torch.full_like(loss, x) for x in (stop, stop > 0))])
        parts = [own, *(buffer.flatten() for buffer in buffers)]
        total = self.engine.sum_over_processes(torch.cat([part.double() for part in parts]))
        sizes = [buffer.numel() for buffer in buffers]
        for buffer, mean in zip(
            buffers, (total[4:] / self.engine.processes).split(sizes), strict=True
        ):
            buffer.copy_(mean.view_as(buffer))
        signals = max(1.0, total[3].item())
        return total[0].item(), total[1].item(), round(total[2].item() / signals)

    def _glance(self, images: Tensor, labels: Tensor, count: int) -> None:
        """Measure the natural accuracy of a batch."""
        try:
            with self.engine.autocast():
                right = score(self.model, images, labels).sum()
        except FloatingPointError:  # the next loss says so, and where; in all processes
            right = torch.zeros(())
        hits = self.engine.sum_over_processes(right.to(self.engine.device)).item()
        self.progress.natural_right += hits
        self.progress.natural_images += count
        self._natural = hits / count

    def _watch_for_collapse(self) -> str:
        """Return to the last good epoch and train with PGD-2 if the network collapsed; say so."""
        if self._guard is None:
            return ""
        self._noise.manual_seed(named_seed(self._seed, f"guard noise {self.progress.epoch}"))
        with self.engine.autocast():
            happened = self._guard.collapsed(
                self.model,
                self.engine,
                epsilon=self._now.epsilon,
                halve=self._halves((self.progress.epoch + 1 - 1 / self.steps) / self.recipe.epochs),
            )
        if happened is None:
            self._guard.keep(self._network)
            return ""
        self._guard.good.load_into(self.model, self._averaged, self._optimiser)
        self._go_on_with_pgd()
        return f"{happened}; back to the last good epoch, and on with PGD-2"

    def _go_on_with_pgd(self) -> None:
        assert self._guard is not None
        self._plan = self._guard.safer_recipe()
        self._guard, self.collapsed = None, True
        self._follow(self._plan)

    def _validate(self) -> Validation | None:
        """Score the validation images, if this epoch is validated; all of them if they select."""
        epoch, recipe = self.progress.epoch, self.recipe
        last = epoch + 1 == recipe.epochs
        if not (last or self.collapsed) and epoch + 1 < recipe.validate_from * recipe.epochs:
            return None
        images = self.data.validation
        return validate(
            self.result,
            images if self.selecting else images.first(recipe.validation_images),
            recipe,
            engine=self.engine,
            seed=self._seed,
            epoch=epoch,
            robust=self.objective.robust,
        )
