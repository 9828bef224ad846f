"""Does an attack lose anything by computing its gradients in bfloat16?

    python benchmarks/precision.py [--model FILE.safetensors] [--images 2000]

IFGSM-20 against a network without noise on CIFAR-10 test images, crafted once with float32 and once
with bfloat16 gradients, both scored in float32: the two robust accuracies and their paired
difference with its 95 % interval, in percentage points.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import tyro

from enresnet.attacks import IFGSM
from enresnet.data import load_data
from enresnet.evaluation import score
from enresnet.evaluation.statistics import paired_difference
from enresnet.models import load_model

RESULTS = Path(__file__).parent.parent / "results" / "cifar10" / "resnet20" / "best.safetensors"


def main(model: Path = RESULTS, images: int = 2000) -> int:
    """Print the accuracies; return 1 if they differ by more than 0.3 points."""
    network = load_model(model)
    pixels, labels = load_data("cifar10").test.batch(slice(images))
    scores = {}
    for precision in ("32", "bf16"):
        attack = IFGSM(eot=1, precision=precision)
        start = time.perf_counter()
        attacked = attack(network, pixels, labels, batch_size=128, progress=False)
        seconds = time.perf_counter() - start
        parts = zip(attacked.split(500), labels.split(500), strict=True)
        scores[precision] = torch.cat([score(network, *part) for part in parts])
        accuracy = 100 * scores[precision].mean()
        print(f"{precision:>4}: {accuracy:.2f} % under IFGSM-20, crafted in {seconds:.0f} s")
    mean, low, high = paired_difference(scores["bf16"], scores["32"])
    print(f"bf16 - 32: {100 * mean:+.2f} points ({100 * low:+.2f} to {100 * high:+.2f})")
    return int(abs(100 * mean) > 0.3)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
