r"""How near each attack comes to the best of all: local optimality, after AttackBench.

Cinà et al. (2024) compare attacks by the area below accuracy against epsilon. With the accuracy
under attack a, the lower envelope (each image counts with the best of all attacks) and the box that
the clean accuracy spans up to the largest radius,

.. math:: \text{optimality}(a) = \frac{A_{\text{clean}} - A_a}{A_{\text{clean}} - A_{\text{best}}}

so that 1 means equal to the envelope. All attacks are in linf and have the same budget: about 1,000
forward and 1,000 backward passes an image. FMN spends it in one run, for the whole curve. An
attack with an epsilon is run four times: a bisection finds the smallest of 15 radii at which an
image is lost. With ``--budget curve`` its four runs share the 1,000 passes, as AttackBench counts
them; with ``--budget run`` each run has them, as an evaluation at one radius would. Square has no
backward passes and takes twice as many forward ones.

``python benchmarks/optimality.py --images 100 --networks resnet8@digits`` takes some minutes on one
core. Attacks of packages that are not installed are left out, with a sentence. Every row is written
to ``--json`` as it comes, and what stands there is not computed again.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import tyro
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from enresnet.attacks import APGD, FMN, PGD, Square
from enresnet.common.randomness import named_generator
from enresnet.common.tables import print_table
from enresnet.data import load_data
from enresnet.models import load_model, without_noise
from enresnet.models.external import import_torchvision
from kept import Kept

RESULTS = Path(__file__).parent.parent / "results" / "cifar10"
BUDGET, ROUNDS, TARGETS = 1000, 4, 9
RADII = 2**ROUNDS - 1
LARGEST = {"digits": 0.36, "cifar10": 24 / 255}
Budget = Literal["curve", "run"]
Package = Literal["pyautoattack", "foolbox", "adv_lib"]
PACKAGES: tuple[Package, ...] = get_args(Package)
STEPS: dict[Budget, int] = {"curve": BUDGET // ROUNDS, "run": 900}

AtRadius = Callable[[Tensor, Tensor, float], Tensor]
"""From images, labels and a radius to attacked images."""
Minimal = Callable[[Tensor, Tensor], Tensor]
"""From images and labels to images attacked as little as possible."""


def generator() -> torch.Generator:
    """Return what an attack draws its starts from."""
    return named_generator(0, "optimality")


def minimal_attacks(model: nn.Module, packages: Sequence[str]) -> dict[str, Minimal]:
    """Return the attacks that look for the smallest perturbation."""
    found: dict[str, Minimal] = {
        f"fmn{BUDGET}": lambda x, y: FMN(steps=BUDGET, eot=1)(model, x, y),
        f"fmn{BUDGET // TARGETS}_targeted_all": lambda x, y: FMN(
            steps=BUDGET // TARGETS, goal="targeted", targets="all", eot=1, generator=generator()
        )(model, x, y),
    }
    if "foolbox" in packages:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
        found[f"foolbox LInfFMNAttack {BUDGET}"] = lambda x, y: foolbox.attacks.LInfFMNAttack(
            steps=BUDGET
        ).run(wrapped, x, foolbox.Misclassification(y))
    if "adv_lib" in packages:
        fmn = adv_lib_fmn()

        found[f"adv-lib fmn {BUDGET}"] = lambda x, y: fmn(
            model, x, y, norm=float("inf"), steps=BUDGET
        )
    return found


def adv_lib_fmn() -> Callable[..., Tensor]:
    """Return adv-lib's FMN, without what the package draws with."""
    import_torchvision()
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))
    from adv_lib.attacks import fmn

    found: Callable[..., Tensor] = fmn
    return found


def radius_attacks(model: nn.Module, steps: int, packages: Sequence[str]) -> dict[str, AtRadius]:
    """Return the attacks that have an epsilon, with so many passes a run."""
    each = steps // TARGETS

    def ours(kind: Any, **options: Any) -> AtRadius:
        return lambda x, y, radius: kind(epsilon=radius, eot=1, generator=generator(), **options)(
            model, x, y
        )

    found = {
        f"pgd{steps}": ours(PGD, steps=steps, early_stop=True),
        f"apgd{steps}": ours(APGD, steps=steps, early_stop=True),
        f"apgd{steps}_dlr": ours(APGD, steps=steps, loss="dlr", early_stop=True),
        f"apgd{each}_t": ours(
            APGD, steps=each, loss="targeted_dlr", targets=TARGETS, early_stop=True
        ),
        f"square{2 * steps}": ours(Square, steps=2 * steps),
    }
    if "pyautoattack" in packages:
        from pyautoattack.autopgd_base import APGDAttack_targeted

        def autoattack(images: Tensor, labels: Tensor, radius: float) -> Tensor:
            attack = APGDAttack_targeted(
                model,
                n_iter=each,
                n_restarts=1,
                norm="Linf",
                eps=radius,
                seed=0,
                device="cpu",
            )
            attack.n_target_classes = TARGETS
            attacked: Tensor = attack.perturb(images, labels)
            return attacked

        found[f"AutoAttack APGD-T {each}"] = autoattack
    if "foolbox" in packages:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))

        def pgd(images: Tensor, labels: Tensor, radius: float) -> Tensor:
            torch.manual_seed(0)
            attacked: Tensor = foolbox.attacks.LinfPGD(steps=steps).run(
                wrapped, images, labels, epsilon=radius
            )
            return attacked

        found[f"foolbox LinfPGD {steps}"] = pgd
    return found


def installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def wrong(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images the model gets wrong."""
    with torch.no_grad():
        return model(images.detach()).argmax(dim=1) != labels


def from_norms(model: nn.Module, attack: Minimal, images: Tensor, labels: Tensor) -> Tensor:
    """Return the size of each image's smallest perturbation; infinite where none was found."""
    attacked = attack(images, labels).detach()
    sizes = (attacked - images).abs().flatten(1).amax(dim=1).double()
    return torch.where(wrong(model, attacked, labels), sizes, torch.inf)


def by_bisection(
    model: nn.Module, attack: AtRadius, images: Tensor, labels: Tensor, largest: float
) -> Tensor:
    """Return for each image the smallest of the radii at which it is lost; infinite if at none.

    An image that is lost in a ball is lost in all larger ones: four runs tell 16 answers apart.
    """
    low, high = torch.zeros(len(images)).long(), torch.full((len(images),), RADII + 1)
    for _ in range(ROUNDS):  # lost at number `high`, not lost at `low`
        middle = (low + high) // 2
        for number in middle.unique().tolist():
            rows = (middle == number).nonzero().squeeze(1)
            attacked = attack(images[rows], labels[rows], largest * number / RADII)
            lost = wrong(model, attacked, labels[rows])
            high[rows[lost]], low[rows[~lost]] = number, number
    sizes = largest * high.double() / RADII
    return torch.where(high > RADII, torch.inf, sizes)


def area(sizes: Tensor, radii: Tensor) -> float:
    """Return the area below accuracy against epsilon, by the trapezoidal rule."""
    accuracy = (sizes[:, None] > radii[None] + 1e-7).double().mean(dim=0)
    return float(torch.trapezoid(accuracy, radii))


def optimalities(norms: dict[str, Tensor], clean: Tensor, largest: float) -> dict[str, float]:
    """Return the optimality of each attack, from the sizes that it found.

    Args:
        norms: The sizes by attack.
        clean: Which images are wrong without an attack.
        largest: The largest radius.
    """
    radii = torch.linspace(0, largest, RADII + 1, dtype=torch.float64)
    found = {name: torch.where(clean, 0.0, sizes) for name, sizes in norms.items()}
    whole = area(torch.where(clean, 0.0, torch.inf).double(), radii)
    best = area(torch.stack(list(found.values())).amin(dim=0), radii)
    return {name: (whole - area(sizes, radii)) / (whole - best) for name, sizes in found.items()}


def networks_here() -> list[str]:
    """Return the networks that there are images for."""
    try:
        load_data("cifar10")
    except (OSError, ValueError) as error:
        print(f"CIFAR-10 is not there, so its networks are left out ({error})", file=sys.stderr)
        return ["resnet8@digits"]
    runs = [str(path.parent) for path in sorted(RESULTS.glob("*/best.safetensors"))]
    return ["resnet8@digits", *runs]


def compare(
    name: str, images: int, budget: Budget, packages: Sequence[str], kept: Kept
) -> list[dict[str, str]]:
    """Return a row for each attack on a network."""
    folder = Path(name)
    model = load_model(folder / "best.safetensors" if folder.is_dir() else name).eval()
    in_the_box = name.partition("@")[2]  # such as cifar10-fast
    data = "cifar10" if folder.is_dir() else in_the_box.partition("-")[0]
    x, y = load_data(data).test.batch(slice(0, images))
    largest, title = LARGEST[data], folder.name
    with without_noise(model):
        clean = wrong(model, x, y)
        smallest = minimal_attacks(model, packages)
        at_radii = radius_attacks(model, STEPS[budget], packages)
        work: dict[str, Callable[[], Tensor]] = {
            **{n: lambda a=a: from_norms(model, a, x, y) for n, a in smallest.items()},
            **{n: lambda a=a: by_bisection(model, a, x, y, largest) for n, a in at_radii.items()},
        }
        for attack, run in work.items():
            if f"{title}: {attack}" in kept.found:
                continue
            start = time.monotonic()
            sizes = run().tolist()
            seconds = round(time.monotonic() - start, 1)
            sizes = [None if size == torch.inf else round(size, 8) for size in sizes]
            kept.put(f"{title}: {attack}", {"seconds": seconds, "sizes": sizes})
            print(f"{title}: {attack} took {seconds} s", file=sys.stderr, flush=True)
    stored = {n: kept.found[f"{title}: {n}"] for n in work}
    norms = {
        n: torch.tensor([torch.inf if s is None else s for s in v["sizes"]], dtype=torch.float64)
        for n, v in stored.items()
    }
    found = optimalities(norms, clean, largest)
    kept.put(f"{title}: optimality, {budget}", {n: round(v, 4) for n, v in found.items()})
    return [
        {
            "network": title,
            "attack": n,
            "optimality": f"{value:.3f}",
            "median size": f"{float(norms[n].median()):.4f}",
            "seconds": f"{stored[n]['seconds']:.0f}",
        }
        for n, value in sorted(found.items(), key=lambda pair: -pair[1])
    ]


def main(
    *,
    networks: tuple[str, ...] = (),
    images: int = 100,
    budget: Budget = "curve",
    packages: tuple[Package, ...] = PACKAGES,
    json: Path | None = None,
) -> None:
    """Print the local optimality of each attack.

    Args:
        networks: Names in the package, such as resnet20@cifar10-fast, or folders of networks for
            CIFAR-10; by default resnet8@digits, and those of results/cifar10 with their noise off
            if CIFAR-10 is there.
        images: How many of the test images to use.
        budget: Whether the runs of an attack at several radii share its passes, or each has them.
        packages: Other libraries whose attacks take part.
        json: Keep every row in this file as it comes, and go on from it.
    """
    warnings.simplefilter("ignore")
    kept = Kept(json, {"images": images, "budget": BUDGET, "radii": RADII, "largest": LARGEST})
    for name in networks:
        if not (Path(name).is_dir() or "@" in name):
            raise SystemExit(
                f"--networks: {name} is neither a folder nor a name such as resnet8@digits"
            )
    for package in packages:
        if not installed(package):
            print(f"{package} is not installed: its attacks are left out", file=sys.stderr)
    there = [package for package in packages if installed(package)]
    for name in networks or networks_here():
        rows = compare(name, images, budget, there, kept)
        print_table(rows, caption="1 is the best of all attacks, image by image.")


if __name__ == "__main__":
    tyro.cli(main)
