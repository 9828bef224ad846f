"""What lean joint training costs and saves.

    python benchmarks/memory.py

Three ratios for a PGD-1 training step of ResNet20 on CIFAR-sized images, batch 128: the peak memory
of a lean En5 over that of an En1, the time of a lean over a plain En5, and the largest difference
between their gradients over the largest gradient. Each peak is that of a process of its own, whose
allocator gives memory back at once.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time

import torch

from enresnet.attacks import PGD
from enresnet.models import create_model, seed_noise, set_recompute

BATCH, REPEATS = 128, 5


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 3, 32, 32, generator=generator)
    return images, torch.randint(10, (BATCH,), generator=generator)


def step(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Craft images with one gradient and take the gradient of their loss."""
    attack = PGD(steps=1, eot=1, generator=torch.Generator().manual_seed(1))
    crafted = attack(model, images, labels, progress=False)
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(crafted), labels).backward()


def network(name: str, *, lean: bool) -> torch.nn.Module:
    """Return a network with fixed weights and noise, in training mode."""
    model = create_model(name, generator=torch.Generator().manual_seed(2)).train()
    seed_noise(model, torch.Generator().manual_seed(3))
    set_recompute(model, lean)
    return model


def peak_memory(name: str, lean: bool) -> float:
    """Return by how many bytes a step raises the peak memory of this process."""
    model, (images, labels) = network(name, lean=lean), problem()
    step(model, images[:2], labels[:2])  # what torch loads once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(model, images, labels)
    return 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def in_own_process(name: str, lean: bool) -> float:
    """Return the peak memory of a step in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory, (name, lean))


def main() -> None:
    """Print the three ratios."""
    # Read by the C library of the processes to come: blocks of 64 KB and more are mapped alone,
    # and unmapped when freed, so that the peak is that of what is in use.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    one, plain, lean = (
        in_own_process(*case)
        for case in (("en1_resnet20", False), ("en5_resnet20", False), ("en5_resnet20", True))
    )
    print(
        f"peak memory: En1 {one / 1e6:.0f} MB, En5 {plain / 1e6:.0f} MB, lean {lean / 1e6:.0f} MB"
    )
    print(f"peak memory of lean En5 over En1: {lean / one:.2f}")

    images, labels = problem()
    networks = [network("en5_resnet20", lean=flag) for flag in (False, True)]
    times: list[list[float]] = [[], []]
    gradients: list[torch.Tensor] = []
    for repeat in range(REPEATS + 1):
        for index, model in enumerate(networks):
            start = time.perf_counter()
            step(model, images, labels)
            if repeat > 0:
                times[index].append(time.perf_counter() - start)
            else:
                gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    ratio = statistics.median(times[1]) / statistics.median(times[0])
    print(f"time of a lean En5 step over a plain one: {ratio:.2f}")
    difference = (gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()
    print(f"largest difference of gradients over the largest gradient: {difference:.1e}")


if __name__ == "__main__":
    main()
