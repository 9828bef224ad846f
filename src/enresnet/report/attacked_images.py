"""Figure 6: images, what attacks make of them, and what a network and an ensemble answer.

They are made when the report is: the first test images, not chosen.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enresnet.common.progress import progress_bar
from enresnet.common.text import brief
from enresnet.report.run_charts import network_key
from enresnet.training import Run

if TYPE_CHECKING:
    from torch import Tensor, nn

EOT = 5  # draws of the noise averaged in every gradient, as in Sec. 4
DRAWS = 10  # predictions averaged in an answer of a network with noise


@dataclass(frozen=True)
class Answer:
    """What one network says of an image."""

    network: str
    word: str
    right: bool


@dataclass(frozen=True)
class ShownImage:
    """An image as a data address, and the networks' answers."""

    source: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class ImageGrid:
    """The columns' titles, and for each image its class and one picture a column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[ShownImage, ...]], ...]
    caption: str
    settings: tuple[str, ...]


def choose_pair(runs: Sequence[Run]) -> tuple[Run, Run]:
    """Return a network and the largest ensemble of it, of the same data and training.

    Raises:
        ValueError: There is no such pair with both networks and the data on this machine.
    """
    from enresnet.data.registry import is_local

    ready = [run for run in runs if run.weights("best").is_file() and not run.config.parts]
    pairs = []
    for plain in ready:
        base, members = network_key(plain.config.model)
        if members:
            continue
        for other in ready:
            own = network_key(other.config.model)
            alike = (other.config.data, other.config.recipe.objective) == (
                plain.config.data,
                plain.config.recipe.objective,
            )
            if own[0] == base and own[1] > 0 and alike:
                pairs.append((own[1], plain, other))
    if not pairs:
        raise ValueError(
            "the figure needs a network and an ensemble of it, trained on the same data in the "
            "same way, with their weights"
        )
    local = [pair for pair in pairs if is_local(pair[1].config.data)]
    if not local:
        data = pairs[0][1].config.data
        raise ValueError(f"the test images of {data} are not on this machine: run enresnet data")
    robust = [pair for pair in local if pair[1].config.recipe.objective != "natural"] or local
    _, plain, ensemble = max(robust, key=lambda pair: pair[0])
    return plain, ensemble


def attack_images(runs: Sequence[Run], images: int, *, seed: int = 0) -> ImageGrid:
    """Attack the first test images on a network and on an ensemble, and ask both of all.

    Raises:
        ValueError: No two of the runs can be compared, or a network names code of its own.
        OSError: A network or the data cannot be read.
    """
    from enresnet.attacks import attack_at
    from enresnet.common.randomness import named_generator
    from enresnet.evaluation.scoring import predictions
    from enresnet.models import seed_noise

    pair = choose_pair(runs)
    test = pair[0].config.load_data().test
    clean, labels = test[:images]
    models: dict[str, nn.Module] = {}
    for run in pair:
        models[run.config.model] = model = run.load("best").eval()
        seed_noise(model, named_generator(seed, "noise of the report's images"))
    epsilon = pair[0].config.recipe.epsilon
    # In tanh space a black pixel hardly moves, and grey digits are mostly black.
    names = ("ifgsm20", "cw_pixel" if test.channels == 1 else "cw")
    made: dict[str, Tensor] = {"original": clean}
    settings = []
    with progress_bar("images", len(pair) * len(names)) as advance:
        for run in pair:
            own = run.config.model
            eot = EOT if network_key(own)[1] else 1
            for name in names:
                attack = attack_at(name, epsilon, eot=eot, seed=seed)
                made[f"{name} on {own}"] = attack(models[own], clean, labels, progress=False)
                settings.append(f"{own}: {attack!r}")
                advance(1)
    said = {
        title: {
            network: predictions(model, pictures, draws=DRAWS if network_key(network)[1] else 1)
            for network, model in models.items()
        }
        for title, pictures in made.items()
    }
    rows = []
    for number in range(len(labels)):
        label = int(labels[number])
        shown = tuple(
            ShownImage(
                _png(pictures[number]),
                tuple(
                    Answer(network, test.classes[int(found[number])], int(found[number]) == label)
                    for network, found in said[title].items()
                ),
            )
            for title, pictures in made.items()
        )
        rows.append((test.classes[label], shown))
    caption = (
        f"The first {len(rows)} test images of {pair[0].config.data}, not chosen; epsilon = "
        f"{brief(epsilon)}. Networks: {pair[0].folder} and {pair[1].folder}. An answer of the "
        f"ensemble is the mean of {DRAWS} draws."
    )
    return ImageGrid(tuple(made), tuple(rows), caption, tuple(settings))


def _png(image: Tensor) -> str:
    """Return an image in [0, 1], C x H x W, as the address of a PNG that holds it."""
    import torch
    from PIL import Image

    pixels = (255 * image.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
