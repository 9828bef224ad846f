"""The claims of the paper's text as statements that runs can decide; ``claims.yaml`` holds them.

A claim is on an effect: the accuracy of a first network less that of a second, or of the first
alone. It holds if the whole 95 % interval of the measured effect is where the claim says, fails if
the whole interval is elsewhere, and is undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from enresnet.common import checks
from enresnet.common.reading import parse_yaml
from enresnet.models import canonical_name, paper_name
from enresnet.paper.published import (
    METRICS,
    TRAININGS,
    Metric,
    Network,
    Training,
    load_paper,
    row_key,
)
from enresnet.report.contents import Decision

Relation = Literal["above", "at_most", "within"]
"""What is claimed of an effect: above 0, at most a bound, or within a bound of 0."""

RELATIONS: tuple[Relation, ...] = get_args(Relation)
METRIC_WORDS: Mapping[Metric, str] = {
    "natural": "natural accuracy",
    "fgsm": "accuracy under FGSM",
    "ifgsm20": "accuracy under IFGSM20",
    "cw": "accuracy under C&W",
    "strongest": "accuracy under the strongest attack",
}
_TRAINING_WORDS: Mapping[Training, str] = {
    "natural": "naturally trained {}",
    "trades": "{} by TRADES",
    "without_noise": "jointly trained {} without noise",
    "integrated": "separately trained {}",
}


@dataclass(frozen=True)
class Side:
    """One side of a claim.

    Attributes:
        network: The network that classifies.
        source: The network that attacks see, if they are blind.
    """

    network: Network
    source: Network | None = None

    def __str__(self) -> str:
        words = _TRAINING_WORDS.get(self.network.training, "{}")
        name = words.format(paper_name(self.network.model))
        if self.source is None:
            return name
        return f"{name} on images made against {paper_name(self.source.model)}"

    @property
    def key(self) -> str:
        """Its name, as on the command line."""
        return row_key(self.network, self.source)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that runs can decide.

    Attributes:
        key: Its name, such as ``"noise-helps-en1_resnet20-natural"``.
        group: The name of the claims that it belongs to, such as ``"noise-helps"``.
        statement: The claim, in a sentence.
        where: Where the paper makes it.
        metric: The accuracy that it is on.
        first: The network that is said to be better, or that the claim is on.
        second: The network that it is compared with; None if the claim is on the first alone.
        relation: What is claimed of the effect.
        bound: Of ``"at_most"`` and ``"within"``, in points; 0 for ``"above"``.

    Example::

        from enresnet.paper import load_claims

        claim = load_claims()["noise-helps-en1_resnet20-natural"]
        print(claim.statement, claim.paper_effect)  # +2.1 points
        print(claim.decide(low=-0.3, high=1.2))  # undecided
    """

    key: str
    group: str
    statement: str
    where: str
    metric: Metric
    first: Side
    second: Side | None
    relation: Relation
    bound: float

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides there are."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def paper_effect(self) -> float | None:
        """The paper's own effect, in points, from its tables; None if they have none."""
        cells = [load_paper().find(s.network, self.metric, s.source) for s in self.sides]
        values = [cell.value for cell in cells if cell is not None]
        if len(values) < len(cells):
            return None
        return round(values[0] - sum(values[1:]), 2)

    @property
    def contradicted(self) -> str:
        """A sentence if the paper's own numbers are against the claim; "" if they are not."""
        effect = self.paper_effect
        if effect is None or self.decide(low=effect, high=effect) == "holds":
            return ""
        return f"The paper's own numbers contradict it: {effect:+.2f} points."

    @property
    def edges(self) -> tuple[float, ...]:
        """The effects at which what is claimed begins or ends, in points."""
        if self.relation == "within":
            return -self.bound, self.bound
        return (self.bound,)

    def decide(self, *, low: float, high: float) -> Decision:
        """Return what an interval of the effect says of the claim.

        Args:
            low: The lower end of the interval, in points.
            high: The upper end.

        Returns:
            "holds" if the whole interval is where the claim says, "fails" if the whole interval is
            elsewhere, and "undecided" otherwise.
        """
        if self.relation == "above":
            inside, outside = low > 0, high < 0
        elif self.relation == "at_most":
            inside, outside = high < self.bound, low > self.bound
        else:
            inside = -self.bound < low and high < self.bound
            outside = low > self.bound or high < -self.bound
        return "holds" if inside else "fails" if outside else "undecided"


@cache
def load_claims() -> Mapping[str, Claim]:
    """Return the claims of the paper's text by key, in the paper's order.

    Returns:
        The claims, one for each pair of networks and metric.

    Raises:
        ValueError: ``claims.yaml`` is damaged.

    Example::

        from enresnet.paper import load_claims

        for claim in load_claims().values():
            if claim.contradicted:
                print(claim.key, claim.contradicted)
    """
    text = (resources.files("enresnet.paper") / "claims.yaml").read_text(encoding="utf-8")
    found: dict[str, Claim] = {}
    for group, values in parse_yaml(text, name="claims.yaml").items():
        for pair in values["pairs"]:
            for metric in values["metrics"]:
                claim = _claim(group, values, pair, metric)
                if claim.key in found:
                    raise ValueError(f"claims.yaml has {claim.key} twice")
                found[claim.key] = claim
    return found


def _claim(group: str, values: Mapping[str, Any], pair: list[str], metric: str) -> Claim:
    data, bound = values.get("data", "cifar10"), values.get("bound", 0)
    relation = checks.choice("relation", values.get("relation", "above"), RELATIONS)
    if bool(bound) == (relation == "above"):
        raise ValueError(
            f"claims.yaml: {group} must have a bound if it is not on an effect above 0"
        )
    metric = checks.choice("metric", metric, METRICS)
    first, second = [*(_side(words, data) for words in pair), None][:2]
    assert first is not None
    statement = values["statement"].format(
        metric=METRIC_WORDS[metric],
        first=first,
        second=second,
        bound=bound,
        points=f"{bound} point{'s' * (bound != 1)}",
    )
    statement = ("" if data == "cifar10" else "CIFAR-100: ") + statement
    # Both sides only where the first alone would not tell one claim of a group from another.
    shared = sum(other[0] == pair[0] for other in values["pairs"]) > 1
    names = [first.key, *([f"over-{second.key}"] if shared and second is not None else [])]
    key = "-".join([group, *names, metric])
    where = values["where"]
    return Claim(key, group, statement, where, metric, first, second, relation, float(bound))


def _side(words: str, data: str) -> Side:
    """Return the side that is written as MODEL[ TRAINING][ from SOURCE]."""
    own, _, source = words.partition(" from ")
    model, _, kind = own.partition(" ")
    training = checks.choice("training", kind or "robust", TRAININGS)
    network = Network(canonical_name(model), training, data)
    return Side(network, Network(canonical_name(source), training, data) if source else None)
