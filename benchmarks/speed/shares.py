"""What the time of a piece of work goes to, by kinds of operation."""

from __future__ import annotations

import re

from torch.profiler import ProfilerActivity, profile

from speed.turns import Work

KINDS = {  # the first pattern that is found in the name of an operation counts
    "convolutions": r"::.*convol",
    "matrix products": r"::(mm|addmm|bmm|baddbmm|mkldnn_linear|_linear_pointwise)$",
    "noise": r"_Inject|inject_noise|draw_key|::(random_|normal_|uniform_)$",
    "BatchNorm": r"batch_norm",
    "activations": r"relu|threshold_backward|clamp_min",
    "pooling": r"pool|aten::mean$",
    "copies": r"::(copy_|fill_|zero_|clone|cat|constant_pad_nd|pixel_(un)?shuffle)$|reorder",
    "optimiser": r"::_(fused|foreach)_",
}
REST = "all else"


def kind_of(operation: str) -> str:
    """Return the kind that an operation of the profiler belongs to."""
    return next((kind for kind, found in KINDS.items() if re.search(found, operation)), REST)


def shares_of(work: Work) -> dict[str, float]:
    """Return the share of each kind of operation in the time of ``work``, the largest first."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    seconds = dict.fromkeys([*KINDS, REST], 0.0)
    for event in profiled.key_averages():
        seconds[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {kind: spent / total for kind, spent in ranked if spent > 0.005 * total}
