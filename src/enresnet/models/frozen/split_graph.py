r"""A network's graph in two parts, split at its first noise.

Up to there all draws of the noise are the same, and share one computation:

.. math:: f(x; \text{noise}) = g(h(x), \text{noise})

The states h(x) are the values that the second part needs of the first: with several members or
skip connections there is more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from enresnet.models.noise import NoiseInjection


@dataclass(frozen=True)
class SplitGraph:
    """A network's two parts: up to the first noise, and from there on."""

    before: fx.GraphModule  # from images to the states
    after: fx.GraphModule  # from the states to logits
    states: int


def split_at_noise(whole: fx.GraphModule) -> SplitGraph | None:
    """Return the two parts of a network, cut at its first noise; None where it has none."""
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
    return SplitGraph(made[0], made[1], len(cut))
