"""Attacks against those of other libraries, on a robustly trained En_2ResNet20 and real images."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from enresnet.attacks import IFGSM, CarliniWagner
from enresnet.attacks.precision import wants_bfloat16
from enresnet.data import load_data
from enresnet.evaluation import score
from enresnet.models import load_model
from enresnet.models.frozen import frozen
from speed.steps import Setting
from speed.turns import MissingError, seconds_of, told

ASSET = Path(__file__).parent.parent / "assets" / "en2_resnet20.safetensors"
EPSILON, STEP, STEPS, EOT = 8 / 255, 2 / 255, 20, 5
DRAWS = 10  # over which accuracies are taken


def robust_network() -> nn.Module:
    """Return the network that is attacked."""
    return load_model(ASSET, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """What other libraries are given: the network as it is, or its fast path inside ours."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.fast: Callable[[Tensor], Tensor] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = (self.fast or self.model)(images)
        return logits


def test_images(count: int) -> tuple[Tensor, Tensor]:
    """Return the first test images of CIFAR-10."""
    try:
        return load_data("cifar10").test.batch(slice(count))
    except OSError as error:
        raise MissingError(f"needs CIFAR-10 ({error})") from error


def ifgsm_eot_vs_torchattacks(setting: Setting) -> dict[str, Any]:
    """IFGSM-20 with EOT-5 against torchattacks' EOTPGD."""
    try:
        import torchattacks
    except ImportError as error:
        raise MissingError("torchattacks is not installed") from error
    network = Network(robust_network())
    theirs = torchattacks.EOTPGD(
        network, eps=EPSILON, alpha=STEP, steps=STEPS, eot_iter=EOT, random_start=False
    )
    return _against("torchattacks' EOTPGD", network, theirs, setting)


def ifgsm_eot_vs_foolbox(setting: Setting) -> dict[str, Any]:
    """IFGSM-20 with EOT-5 against foolbox's PGD on its EOT wrapper."""
    try:
        import foolbox
    except ImportError as error:
        raise MissingError("foolbox is not installed") from error
    network = Network(robust_network())
    wrapped = foolbox.models.ExpectationOverTransformationWrapper(
        foolbox.PyTorchModel(network.eval(), bounds=(0, 1)), n_steps=EOT
    )
    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=False)

    def theirs(images: Tensor, labels: Tensor) -> Tensor:
        return attack.run(wrapped, images, labels, epsilon=EPSILON)

    return _against("foolbox's PGD with its EOT wrapper", network, theirs, setting)


def _against(
    rival: str,
    network: Network,
    theirs: Callable[[Tensor, Tensor], Tensor],
    setting: Setting,
) -> dict[str, Any]:
    """Attack batch by batch in turn; accuracies over fresh draws of the noise."""
    images, labels = test_images(setting.images)
    model = network.model
    ours = IFGSM(epsilon=EPSILON, step_size=STEP, steps=STEPS, eot=EOT)
    ratios, frozen_ratios, right = [], [], torch.zeros(2)
    ours(model, images[:8], labels[:8])
    theirs(images[:8], labels[:8])
    for start in range(0, len(images), 128):
        batch, target = images[start : start + 128], labels[start : start + 128]
        results: list[Tensor] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = seconds_of(lambda b=batch, t=target, r=results: r.append(theirs(b, t)))
        mine = seconds_of(lambda b=batch, t=target, r=results: r.append(ours(model, b, t)))
        ratios.append(other / mine)
        with warnings.catch_warnings(), frozen(model) as network.fast:
            warnings.simplefilter("ignore")
            frozen_ratios.append(seconds_of(lambda b=batch, t=target: theirs(b, t)) / mine)
        network.fast = None
        for index, attacked in enumerate(results):
            right[index] += score(model, attacked.clamp(0, 1), target, draws=DRAWS).sum()
    their_accuracy, our_accuracy = (100 * right / len(images)).tolist()
    return told(
        ratios,
        f"IFGSM-20 with EOT-5, En_2ResNet20, {len(images)} CIFAR-10 test images in batches of 128: "
        f"{rival} (float32) on the network as it is loaded, over ours (gradients in "
        f"{_precision(model)})",
        theirs_over_ours_on_a_frozen_network=statistics.median(frozen_ratios),
        their_robust_accuracy=their_accuracy,
        our_robust_accuracy=our_accuracy,
        at_least=3.0,
        accuracy_holds=our_accuracy <= their_accuracy + 1,
    )


def _precision(model: nn.Module) -> str:
    return "bfloat16" if wants_bfloat16(model, None, torch.empty(0), "auto") else "float32"


def art_carlini(model: nn.Module, shape: tuple[int, ...]) -> Any:
    """Return ART's C&W in linf, with one solve an image."""
    try:
        from art.attacks.evasion import CarliniLInfMethod
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        raise MissingError("adversarial-robustness-toolbox is not installed") from error
    classifier = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=shape,
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    return CarliniLInfMethod(
        classifier,
        initial_const=10,
        largest_const=10.1,
        decrease_factor=1e-3,
        max_iter=50,
        learning_rate=6e-4,
        verbose=False,
    )


def cw_vs_art(setting: Setting) -> dict[str, Any]:
    """C&W linf, 50 steps, against ART's, which solves image by image."""
    model = robust_network()
    images, labels = test_images(min(64, setting.images))
    attack = art_carlini(model, tuple(images.shape[1:]))
    ours = CarliniWagner(c=10, steps=50, step_size=6e-4, eot=1)
    ratios: list[float] = []
    results: list[Any] = []
    ours(model, images[:2], labels[:2])
    attack.generate(images[:1].numpy(), labels[:1].numpy())
    for _ in range(max(1, setting.repeats // 2)):
        results = []
        other = seconds_of(
            lambda r=results: r.append(attack.generate(images.numpy(), labels.numpy()))
        )
        mine = seconds_of(lambda r=results: r.append(ours(model, images, labels)))
        ratios.append(other / mine)
    clean, theirs, mine = (
        100 * float(score(model, torch.as_tensor(each), labels, draws=DRAWS).mean())
        for each in (images, *results)
    )
    return told(
        ratios,
        f"C&W linf, 50 steps, En_2ResNet20, {len(images)} CIFAR-10 test images: ART's CarliniLInf, "
        "one solve an image, over ours (both float32)",
        clean_accuracy=clean,
        their_robust_accuracy=theirs,
        our_robust_accuracy=mine,
        at_least=20.0,
    )
