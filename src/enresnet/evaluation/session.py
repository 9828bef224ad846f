"""One evaluation, from models and images to accuracies: the path that all evaluations share.

The prediction of a randomised model is a distribution, so every clean and attacked image is scored
over ``draws`` repeated predictions with fresh noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from enresnet.attacks import Attack
from enresnet.attacks.known_networks import our_network
from enresnet.data import Images
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.aggregation import summarise
from enresnet.evaluation.evaluation import Evaluation
from enresnet.evaluation.first_look import FirstLook
from enresnet.evaluation.inputs import Attacks, as_images, named_attacks
from enresnet.evaluation.journal import Journals
from enresnet.evaluation.matrix import OWN, TransferMatrix
from enresnet.evaluation.misuse import about, suspicions, warn_of_bad, warn_of_chance
from enresnet.evaluation.model_identity import Identity
from enresnet.evaluation.options import EvaluationOptions
from enresnet.evaluation.piece import Result
from enresnet.evaluation.runner import Runner
from enresnet.evaluation.seeding import own_streams
from enresnet.models.interface import Model
from enresnet.models.registry import name_of


@dataclass(frozen=True)
class Session:
    """Models and images that are open for measurements.

    Each model is identified, and asked whether it is deterministic, at most once.

    Attributes:
        sources: The models that attacks see, by name.
        targets: The models that classify, by name.
        data: The images.
        options: How measurements are made.
        look: What is known of the models.
        digest: That of the whole dataset, images beyond the limit included.

    Example::

        from enresnet.attacks import PGD
        from enresnet.evaluation import EvaluationOptions, Session

        session = Session.open(model, (images, labels), EvaluationOptions(draws=2, seed=0))
        first = session.evaluation(session.measure("fgsm"))
        print(session.complete({"pgd": PGD(steps=2)}, {"natural": first.natural}))
    """

    sources: Mapping[str, Model]
    targets: Mapping[str, Model]
    data: Images
    options: EvaluationOptions
    look: FirstLook
    digest: str

    @classmethod
    def between(
        cls,
        sources: Mapping[str, Model],
        targets: Mapping[str, Model],
        dataset: Any,
        options: EvaluationOptions,
        *,
        own_noise: bool = False,
    ) -> Session:
        """Return a session of attacks on some models that others classify.

        Args:
            sources: The models that attacks see, by name.
            targets: The models that classify, by name.
            dataset: As for :func:`~enresnet.evaluation.evaluate`.
            options: How measurements are made.
            own_noise: Whether a model that is both a source and a target draws noise of its own as
                either; by default it draws from one stream.
        """
        whole = as_images(dataset)
        data = whole.first(options.limit)
        look = FirstLook(data, batch_size=options.batch_size, seed=options.seed)
        if own_noise:
            both = {id(model) for model in targets.values()}
            sources = {s: look.twin(m) if id(m) in both else m for s, m in sources.items()}
        return cls(sources, targets, data, options, look, whole.fingerprint())

    @classmethod
    def open(cls, model: Model, dataset: Any, options: EvaluationOptions) -> Session:
        """Return a session of one model, attacked and classifying."""
        return cls.between({OWN: model}, {OWN: model}, dataset, options)

    def of(self, source: Model, target: Model, options: EvaluationOptions) -> Session:
        """Return a session of two models on the same images, which knows what this one knows."""
        return replace(self, sources={OWN: source}, targets={OWN: target}, options=options)

    def on(self, dataset: Any, options: EvaluationOptions) -> Session:
        """Return a session of the same models on other images."""
        images = as_images(dataset)
        return replace(self, data=images, options=options, digest=images.fingerprint())

    def identity(self, name: str = OWN) -> Identity:
        """Return the identity of the model of this name."""
        return self.look.identity({**self.sources, **self.targets}[name])

    def usual_eot(self) -> int:
        """Return how many draws a gradient needs for all sources: 1 if they are deterministic.

        Raises:
            ValueError, TypeError, FloatingPointError: A target does not fit the data.
        """
        for model in self.targets.values():
            self.look.check(model)
        return max(self.look.usual_eot(model) for model in self.sources.values())

    def measure(
        self, attacks: Attacks = (), *, natural: Mapping[str, Accuracy] | None = None
    ) -> TransferMatrix:
        """Return the accuracy of every target on clean images, and under attacks on every source.

        Every attack is crafted once for each source and scored by all targets.

        Args:
            attacks: One or several, themselves or by name; a mapping gives results other names.
            natural: The accuracy on clean images by target, where it is known already.
        """
        with self.options.resumable():
            return self._measure(attacks, natural)

    def evaluation(self, found: TransferMatrix) -> Evaluation:
        """Return what :meth:`measure` found of the only target, with its name and the images'."""
        model, data = name_of(self.targets[OWN]), self.data.name or None
        return replace(found.evaluation(), model=model, data=data)

    def complete(self, attacks: Mapping[str, Attack], known: Mapping[str, Accuracy]) -> Evaluation:
        """Return the accuracies of the session's model under all ``attacks``, in their order.

        Those that are ``known`` are not measured again.
        """
        new = {name: attack for name, attack in attacks.items() if name not in known}
        natural = {OWN: known[NATURAL]} if NATURAL in known else None
        if natural is None or new:
            result = self.evaluation(self.measure(new, natural=natural))
        else:
            result = self.evaluation(TransferMatrix(natural, {}))
        return replace(result, robust={name: {**known, **result.robust}[name] for name in attacks})

    def _measure(self, attacks: Attacks, known: Mapping[str, Accuracy] | None) -> TransferMatrix:
        options, named = self.options, named_attacks(attacks, self.options.seed)
        for model in self.targets.values():
            self.look.check(model)
        if options.warn:
            self._warn_of_misuse()  # before hours of work, not after
        runner = self._runner(named, clean=known is None)
        journal = None if options.journal is None else options.open_journal(runner.header())
        found = runner.do(journal=journal, shard=options.shard, progress=options.progress)
        natural = dict(known or {})
        for target in self.targets if known is None else ():
            natural[target] = self._accuracy(found["", NATURAL], target)
        robust = {
            name: {
                (source, target): self._accuracy(
                    found[source, name], target, runner.attack_on(source, attack)
                )
                for source in self.sources
                for target in self.targets
            }
            for name, attack in named.items()
        }
        self._warn(natural, robust, measured=known is None)
        return TransferMatrix(natural, robust)

    def _runner(self, named: Mapping[str, Attack], *, clean: bool = True) -> Runner:
        open_eot = any(attack.eot is None for attack in named.values())
        return Runner(
            self.sources,
            self.targets,
            self.data,
            named,
            {name: self._draws(model) for name, model in self.targets.items()},
            self.options.batch_size,
            self.look.identity,
            self.options.seed,
            clean=clean,
            image_sink=self.options.image_sink,
            eot={s: self.look.usual_eot(m) for s, m in self.sources.items()} if open_eot else {},
            answer=self.look.answer,
        )

    @cached_property
    def _used(self) -> str:
        """The digest of the images that are measured."""
        return self.data.fingerprint()

    def _draws(self, model: Model) -> int:
        return 1 if self.look.is_deterministic(model) else self.options.draws

    def _accuracy(self, found: Result, target: str, attack: Attack | None = None) -> Accuracy:
        model = self.targets[target]
        same = self.look.is_deterministic(model)
        return summarise(
            found.scored[target],
            self.data,
            seconds=found.seconds,
            independent=same or our_network(model) is not None,
            deterministic=same,
            attack=None if attack is None else repr(attack),
            settings=None if attack is None else attack.settings(),
            claimed=found.claimed,
            gradients=found.gradients,
            evaluations=found.evaluations,
            norms=found.norms,
            digest=self.digest,
            used=self._used,
        )

    def _warn_of_misuse(self) -> None:
        with own_streams(self.targets.values(), self.options.seed) as reseed:
            reseed("first look")
            for name, model in self.targets.items():
                for suspicion in suspicions(model, self.data):
                    warnings.warn(about(name, str(suspicion)), stacklevel=5)

    def _warn(
        self,
        natural: Mapping[str, Accuracy],
        robust: Mapping[str, Mapping[tuple[str, str], Accuracy]],
        *,
        measured: bool,
    ) -> None:
        for name, value in natural.items():
            if self.options.warn and measured:
                warn_of_chance(name, value, self.data)
            attacked = [cells[source, name] for cells in robust.values() for source in self.sources]
            warn_of_bad(name, [value, *attacked])

    def finish(self, recorded: Mapping[str, Attack] | None = None) -> list[str]:
        """Remove the journals of this session once its results are recorded.

        Args:
            recorded: All attacks whose results are recorded now, measured here or before: journals
                of theirs that a killed call has left are removed too.

        Returns:
            A sentence about each evaluation of others that the same folder holds.
        """
        if not isinstance(self.options.journal, Journals):
            return []
        header = None if recorded is None else self._runner(recorded).header()
        self.options.journal.remove(header)
        return self.options.journal.others()
