r"""A network's graph in two parts, split at its first noise.

Up to there all draws of the noise are the same, and share one computation:

.. math:: f(x; \text{noise}) = g(h(x), \text{noise})

The states h(x) are the values that the second part needs of the first: with several members or
skip connections there is more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from enresnet.models.frozen.known_operations import changes_in_place
from enresnet.models.noise import NoiseInjection

# Functions and methods whose result has memory of its own.
_NEW = frozenset(
    "add sub mul truediv div neg relu sigmoid tanh gelu silu softmax conv1d conv2d linear matmul "
    "bmm einsum cat stack mean sum batch_norm layer_norm group_norm avg_pool2d max_pool2d "
    "adaptive_avg_pool2d".split()
)


@dataclass(frozen=True)
class SplitGraph:
    """A network's two parts: up to the first noise, and from there on."""

    before: fx.GraphModule  # from images to the states
    after: fx.GraphModule  # from the states to logits
    states: int
    overwrites: bool  # whether the second part may write over the states


def split_at_noise(whole: fx.GraphModule) -> SplitGraph | None:
    """Return the two parts of a network, cut at its first noise; None where it cannot be cut."""
    noisy: set[fx.Node] = set()
    seen: set[fx.Node] = set()  # what depends on the images; all else is made of weights alone
    for node in whole.graph.nodes:
        if node.op == "placeholder" or any(source in seen for source in node.all_input_nodes):
            seen.add(node)
        own = node.op == "call_module" and isinstance(
            whole.get_submodule(str(node.target)), NoiseInjection
        )
        if own or any(source in noisy for source in node.all_input_nodes):
            noisy.add(node)
    nodes = list(whole.graph.nodes)
    output = nodes[-1]
    if output not in noisy or not isinstance(output.args[0], fx.Node):
        return None
    memory = _memory(nodes, whole)
    if _is_reordered(nodes, noisy, memory, whole):
        return None
    cut = [
        node
        for node in nodes
        if node in seen and node not in noisy and any(user in noisy for user in node.users)
    ]
    before, after = fx.Graph(), fx.Graph()
    first: dict[fx.Node, fx.Node] = {}
    second = {node: after.placeholder(f"state_{number}") for number, node in enumerate(cut)}
    for node in nodes:
        if node in noisy:
            if node is not output:
                second[node] = after.node_copy(node, lambda n: second[n])
        else:
            first[node] = before.node_copy(node, lambda n: first[n])
            if node not in seen:
                second[node] = after.node_copy(node, lambda n: second[n])
    before.output(tuple(first[node] for node in cut))
    after.output(second[output.args[0]])
    made = [fx.GraphModule(whole, graph).eval() for graph in (before, after)]
    for module in made:
        module.graph.eliminate_dead_code()
        module.recompile()
    overwrites = any(changes_in_place(node, whole) and memory[node] not in noisy for node in noisy)
    return SplitGraph(made[0], made[1], len(cut), overwrites)


def _memory(nodes: list[fx.Node], root: nn.Module) -> dict[fx.Node, fx.Node]:
    """Return for each node the one whose memory its result may share: the first that held it."""
    memory: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        first = node.args[0] if node.args else None
        shares = isinstance(first, fx.Node) and _may_share(node, root)
        memory[node] = memory[first] if isinstance(first, fx.Node) and shares else node
    return memory


def _is_reordered(
    nodes: list[fx.Node], noisy: set[fx.Node], memory: dict[fx.Node, fx.Node], root: nn.Module
) -> bool:
    """Return whether a cut moves a change in place past another use of the same memory.

    What does not depend on noise comes first in the parts. So a change that does not may not stand
    behind a use that does, nor a change that does before a use that does not.
    """
    changed: set[fx.Node] = set()  # memory that a node with noise has written to
    used: set[fx.Node] = set()  # memory that a node with noise has read
    for node in nodes:
        sources = {memory[source] for source in node.all_input_nodes}
        if node in noisy:
            used |= sources
            changed |= {memory[node]} if changes_in_place(node, root) else set()
        elif sources & changed or (changes_in_place(node, root) and memory[node] in used):
            return True
    return False


def _may_share(node: fx.Node, root: nn.Module) -> bool:
    """Return whether a node's result may be a view of its first argument, or that itself."""
    if changes_in_place(node, root):
        return True
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        return not isinstance(module, NoiseInjection) and not any(True for _ in module.parameters())
    return getattr(node.target, "__name__", str(node.target)) not in _NEW
