"""Does training lose anything by computing in bfloat16?

    python benchmarks/training_precision.py [--images 10000] [--seeds 5] [--kept FILE]

N-FGSM, some epochs on the first images of CIFAR-10, once in float32 and once with the
passes in bfloat16, from the same seeds. Both networks are attacked and scored in float32 on the
same test images. Printed are the accuracies of each pair, how much a seed alone changes them, and
the mean difference with its 95 % interval over the seeds (Student's t), in percentage points.
What is found is kept in FILE after every training, and what stands there is not trained again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean, stdev

import tyro
from scipy.stats import ttest_rel
from torch import Tensor

from enresnet.attacks import IFGSM
from enresnet.data import load_data
from enresnet.evaluation import score
from enresnet.training import Engine, RunConfig, Trainer, load_recipe

sys.path.insert(0, str(Path(__file__).parent))

from kept import Kept

PRECISIONS = ("32", "bf16-mixed")


def main(
    model: str = "resnet20",
    images: int = 10_000,
    epochs: int = 4,
    tests: int = 1000,
    seeds: int = 5,
    kept: Path | None = None,
) -> int:
    """Print the accuracies; return 1 if bf16 costs more than one seed's standard deviation."""
    pixels, labels = load_data("cifar10").test.batch(slice(tests))
    known = Kept(kept, {"model": model, "images": images, "epochs": epochs, "tests": tests})
    found: dict[str, list[tuple[float, float]]] = {precision: [] for precision in PRECISIONS}
    for seed in range(seeds):
        for precision in PRECISIONS:
            start = time.perf_counter()
            key = f"{seed} {precision}"
            if key not in known.found:
                pair = trained(model, images, epochs, seed, precision, pixels, labels)
                known.put(key, pair)
            pair = known.found[key]
            found[precision].append(pair)
            print(
                f"seed {seed} {precision:>10}: clean {pair[0]:.1f} %, IFGSM-20 {pair[1]:.1f} %, "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
    alike = True
    for column, name in enumerate(("clean", "IFGSM-20")):
        plain, mixed = ([pair[column] for pair in found[each]] for each in PRECISIONS)
        low, high = ttest_rel(mixed, plain).confidence_interval(0.95)
        difference, seed_noise = mean(mixed) - mean(plain), stdev(plain)
        print(
            f"{name}: float32 {mean(plain):.2f} %, one seed's standard deviation "
            f"{seed_noise:.2f}; bf16 - float32 {difference:+.2f} points ({low:+.2f} to {high:+.2f})"
        )
        alike &= low <= 0 <= high or abs(difference) <= seed_noise
    return 0 if alike else 1


def trained(
    model: str,
    images: int,
    epochs: int,
    seed: int,
    precision: str,
    pixels: Tensor,
    labels: Tensor,
) -> tuple[float, float]:
    """Return the clean and the attacked accuracy after training, in percent."""
    recipe = load_recipe(
        "fast", epochs=epochs, label_smoothing=0, epsilon_growth=0, low_resolution=0, shift=None
    )
    config = RunConfig(
        model=model, data="cifar10", recipe=recipe, seed=seed, limit=images, precision=precision
    )
    data = config.load_data()
    engine = Engine(precision=precision)
    trainer = Trainer(config.create_model(data), data, recipe, seed=seed, engine=engine)
    list(trainer.epochs())
    network = trainer.result.eval()
    attack = IFGSM(eot=1, precision="32")
    attacked = attack(network, pixels, labels, batch_size=128, progress=False)
    return tuple(100 * float(score(network, x, labels).mean()) for x in (pixels, attacked))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
