"""Which memory format, precision and number of threads are fastest for a step with PGD-1?

    python benchmarks/layouts.py

En_1ResNet20 on CIFAR-sized random images, batch 128: medians of interleaved repeats, in ms.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from enresnet.attacks import PGD
from enresnet.models import create_model

BATCH, REPEATS = 128, 5


def main() -> None:
    """Print a line a setting, the fastest first."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    most = torch.get_num_threads()
    counts = sorted({1, *(2**k for k in range(1, most.bit_length()) if 2**k <= most), most})
    times: dict[tuple[int, str, str], list[float]] = {}
    for repeat in range(REPEATS + 1):
        for threads in counts:
            for layout in (torch.contiguous_format, torch.channels_last):
                for dtype in (torch.float32, torch.bfloat16):
                    torch.set_num_threads(threads)
                    model = create_model("en1_resnet20").train().to(memory_format=layout)
                    batch = images.contiguous(memory_format=layout)
                    start = time.perf_counter()
                    step(model, batch, labels, dtype)
                    if repeat:
                        key = (threads, str(layout)[6:], str(dtype)[6:])
                        times.setdefault(key, []).append(time.perf_counter() - start)
    ranked = sorted(times.items(), key=lambda item: statistics.median(item[1]))
    for (threads, layout, dtype), seconds in ranked:
        print(f"{1000 * statistics.median(seconds):6.0f} ms  {threads} threads  {layout}  {dtype}")


def step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype) -> None:
    """Craft with one gradient and take the gradient of the weights."""
    attack = PGD(steps=1, eot=1, precision="32", generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        crafted = attack(model, images, labels, progress=False)
        logits = model(crafted)
    nn.functional.cross_entropy(logits.float(), labels).backward()


if __name__ == "__main__":
    main()
