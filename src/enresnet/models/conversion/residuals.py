"""Where a network adds a shortcut to a residual mapping.

An addition counts if both terms depend on the images, have the same shape, and one of them is the
identity or a projection of something that the other was computed from: the shortcut. A pass of
example images tells. Sums of more terms, x + f(x) + g(x), are one residual mapping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from enresnet.models.conversion.additions import additions, fused_sums, last_of_chain
from enresnet.models.conversion.arguments import Given, Watch
from enresnet.models.conversion.candidates import candidates, made_of, place_of
from enresnet.models.conversion.example import agree, answer, answer_of_copy, copied, fill_zeros
from enresnet.models.conversion.executed_sums import executed_sums
from enresnet.models.conversion.probing import Seen, probe_addition, probe_fused
from enresnet.models.conversion.rewriting import rewrite
from enresnet.models.conversion.shortcuts import NO_TENSORS, concatenates
from enresnet.models.conversion.source import adds_activations
from enresnet.models.conversion.tracing import UntraceableError, may_add, traced

Blocks = str | type[nn.Module] | Sequence[str | type[nn.Module]]
_NOT_REACHED = (
    "it was not reached; if a module asks for its exact class (type(block) is ...), name it in "
    "blocks=[...]"
)
_UNUSED = "its sum does not reach the logits"
_UNSEEN = (
    "it adds a shortcut in a step that a trace does not look into, as a torch.jit.script or "
    "torch.fx.wrap function, or torch.stack(...).sum; write it as a sum, x + y, or name the block "
    "in blocks=[...]"
)
_FUSED = (
    "noise is added after sums alone; write it as one, x + y, or name the block in blocks=[...]"
)


@dataclass(frozen=True)
class Residual:
    """One place where noise is added.

    Attributes:
        module: The name of the module in whose ``forward`` the addition stands.
        kind: Its class.
        number: Which of its additions, from 0; None where noise is added to its output.
        uses: How often one forward pass comes here; more than once where a module is shared.
        left_out: The optional arguments of its ``forward`` that the network does not give: they
            stay at their defaults.

    Example::

        from enresnet.models import find_residuals

        print(find_residuals(enresnet.create_model("resnet8")).found[0])
    """

    module: str
    kind: str
    number: int | None
    uses: int = 1
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Residuals:
    """What :func:`find_residuals` found in a network.

    Attributes:
        found: The residual mappings, in the order of the modules.
        skipped: Additions that are none, and modules that could not be looked into, with the
            reason.

    Example::

        from enresnet.models import find_residuals

        print(find_residuals(enresnet.create_model("resnet8")).describe())
    """

    found: tuple[Residual, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def uses(self) -> int:
        """How many residual mappings one forward pass goes through."""
        return sum(residual.uses for residual in self.found)

    def describe(self) -> str:
        """Return how many residual mappings there are, where, and what was skipped and why."""
        kinds: dict[str, dict[str, int]] = {}
        for residual in self.found:
            uses = kinds.setdefault(residual.kind, {})
            place = residual.module or "the network itself"
            uses[place] = uses.get(place, 0) + residual.uses
        lines = [_counted(self.uses, "residual mapping")]
        for kind, uses in kinds.items():
            low, high = min(uses.values()), max(uses.values())
            each = f"{low}" if low == high else f"{low} to {high}"
            lines.append(
                f"  {kind}: {_counted(len(uses), 'module')}, {each} each ({_listed(list(uses))})"
            )
        lines += [f"  skipped {text}" for text in _grouped(self.skipped)]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Addition:
    """An addition in a network: where noise would be added, what a pass met, and its chain.

    Additions of one chain have the same module and number of the last of them.
    """

    residual: Residual
    seen: Seen
    chain: tuple[str, int]

    @property
    def why(self) -> str:
        """Why it is no residual mapping by itself; "" if it is one."""
        return self.seen.reasons[0] if self.seen.reasons else _NOT_REACHED


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _listed(names: list[str]) -> str:
    """Return the first names and the last one."""
    return ", ".join(names[:4]) + (f", ... {names[-1]}" if len(names) > 4 else "")


def _grouped(skipped: Mapping[str, str]) -> list[str]:
    """Return what was skipped and why, with one line for each reason."""
    places: dict[str, list[str]] = {}
    for place, why in skipped.items():
        places.setdefault(why, []).append(place)
    return [
        f"{f'{len(names)} places: ' if len(names) > 1 else ''}{_listed(names)}: {why}"
        for why, names in places.items()
    ]


def find_residuals(
    model: nn.Module,
    *,
    blocks: Blocks | None = None,
    example: Tensor | None = None,
) -> Residuals:
    """Return where a network adds a shortcut to a residual mapping.

    Args:
        model: From images to logits.
        blocks: Names of modules, classes or names of classes, or one of them, whose output counts,
            in place of what is found.
        example: Images to look at the network with; by default two random ones of a size that it
            takes.

    Returns:
        The places, and what was skipped.

    Shape:
        - example: N x C x H x W

    Raises:
        TypeError: A block is neither a name nor a class.
        ValueError: There is none, or a block is none of the network's.

    Example::

        from enresnet.models import find_residuals

        print(find_residuals(enresnet.create_model("resnet8")).describe())
    """
    if blocks is not None:
        return Residuals(tuple(_chosen(model, blocks, example)))
    given, plain, images = _watched(model, example)
    probed = _quiet_copy(model)
    executed = executed_sums(_quiet_copy(model), images)
    skipped: dict[str, str] = {}
    untraced: dict[str, str] = {}
    places: list[_Addition] = []
    fused: list[tuple[str, str, Seen]] = []
    for name, module in list(probed.named_modules()):
        if not may_add(module):
            continue
        try:
            trace = traced(module, given.get(name, Given()))
        except UntraceableError as error:
            untraced[place_of(name, module)] = str(error)
            if executed.pop(name, 0) or adds_activations(module):
                skipped[place_of(name, module)] = str(error)
            continue
        graph, kind = trace.graph, type(module).__name__
        nodes, others = additions(graph), fused_sums(graph)
        last = [nodes.index(last_of_chain(node, nodes)) for node in nodes]  # before probes use them
        for number, node in enumerate(nodes):
            residual = Residual(name, kind, number, left_out=given.get(name, Given()).never)
            seen = probe_addition(module, graph, node)
            places.append(_Addition(residual, seen, (name, last[number])))
        for node, operation in others.items():
            what = f"{place_of(name, module)}, {operation}"
            fused.append((name, what, probe_fused(module, graph, node)))
        if nodes or others:
            rewrite(module, graph, trace.read)
    logits = answer_of_copy(probed, images, model)
    faithful, found = agree(plain, logits), []
    uses = [len(place.seen.reasons) for place in places]  # before there are more passes
    for name, seen in [(p.residual.module, p.seen) for p in places] + [(n, s) for n, _, s in fused]:
        executed[name] -= seen.reasons.count("")  # what is left, no trace shows
    chains = {place.chain for place in places if not place.why}
    for place, count in zip(places, uses, strict=True):
        residual, why = place.residual, "" if place.chain in chains else place.why
        if not why and place.chain != (residual.module, residual.number):
            continue  # the noise is added after the last sum of the chain
        # A copy that is another function is refused later, for that reason.
        if not why and faithful and not place.seen.reaches(logits, probed, images, model):
            why = _UNUSED
        if not why:
            found.append(replace(residual, uses=count))
        elif why != NO_TENSORS:
            where = f"{residual.module or 'the network itself'} ({residual.kind})"
            skipped[f"{where}, addition {residual.number}"] = why
    skipped.update((what, _FUSED) for _, what, seen in fused if "" in seen.reasons)
    skipped.update((place_of(name, model.get_submodule(name)), _UNSEEN) for name in +executed)
    if not found:
        skipped = {**skipped, **untraced}
        raise ValueError(_none_found(model, skipped, concatenates=concatenates(logits)))
    return Residuals(tuple(found), skipped)


def _quiet_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode in which only what comes from the images has gradients."""
    made = copied(model).eval().requires_grad_(False)
    fill_zeros(made)
    return made


def _watched(model: nn.Module, example: Tensor | None) -> tuple[dict[str, Given], Any, Tensor]:
    """Return which optional arguments the modules are given, the logits, and the images."""
    watched = copied(model).eval()
    fill_zeros(watched)
    watch = Watch(watched)
    logits, images = answer(watched, example, watch.seen)
    return watch.given(), logits, images


def _chosen(model: nn.Module, blocks: Blocks, example: Tensor | None) -> list[Residual]:
    """Return the modules that are named, or of the classes that are given, each once."""
    names = {module: name for name, module in model.named_modules()}  # of several, the first
    chosen: dict[nn.Module, str] = {}
    wanted = [blocks] if isinstance(blocks, str | type) else list(blocks)
    if not wanted:
        raise ValueError(f"blocks must have at least one module, found none; {made_of(model)}")
    for block in wanted:
        if not isinstance(block, str | type):
            raise TypeError(
                "blocks must be names of modules or their classes, found "
                f"{type(block).__name__}; {made_of(model)}"
            )
        if isinstance(block, str):
            known = dict(model.named_modules(remove_duplicate=False))
            of_class = [module for module in names if type(module).__name__ == block]
            modules = [known[block]] if block in known else of_class
        else:
            modules = [module for module in names if isinstance(module, block)]
        if not modules:
            what = block if isinstance(block, str) else block.__name__
            raise ValueError(
                f"blocks must be modules of the network or their classes, found {what!r}; among "
                f"them are {', '.join(candidates(model))}"
            )
        chosen.update((module, names[module]) for module in modules)
    uses = _uses(model, chosen.values(), example)
    for module, name in chosen.items():
        if not uses[name]:
            raise ValueError(
                f"blocks has {place_of(name, module)}, which is not called when the network is in "
                "evaluation mode: its output gets no noise; name the blocks that are called"
            )
    return [Residual(n, type(module).__name__, None, uses[n]) for module, n in chosen.items()]


def _uses(model: nn.Module, names: Iterable[str], example: Tensor | None) -> Counter[str]:
    """Return how often one forward pass calls each of these modules."""
    watched, uses = copied(model).eval(), Counter[str]()

    def counting(name: str) -> Callable[..., None]:
        return lambda *_: uses.update([name])

    for name in names:
        watched.get_submodule(name).register_forward_hook(counting(name))
    answer(watched, example, uses)
    return uses


def _none_found(model: nn.Module, skipped: Mapping[str, str], *, concatenates: bool) -> str:
    words = f"model has no residual connection that could be found: {type(model).__name__}"
    if skipped:
        words += " has " + "; ".join(_grouped(skipped)[:4])
    if concatenates:
        words += ". It concatenates activations (torch.cat), which is not a residual addition"
    return (
        f"{words}. Where it has some, name the blocks whose output they are, "
        f"enresnet.feynman_kac(..., blocks=[...]); {made_of(model)}"
    )
