"""What two processes do together, told by each in a file of its own; run by test_processes.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from enresnet.attacks import geometry
from enresnet.data import load_data
from enresnet.models import create_model
from enresnet.training import Engine, Recipe, Trainer


class Plain(nn.Module):
    """A network without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.utils.skip_init(nn.Conv2d, 1, 4, 3, padding=1)
        self.second = nn.utils.skip_init(nn.Linear, 4 * 64, 10)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.1, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.second(torch.tanh(self.first(images)).flatten(1))
        return logits


def main(out: Path, devices: int) -> None:
    """Train and write what this process saw."""
    engine = Engine(accelerator="cpu", devices=devices)
    engine.launch()
    data = load_data("digits", limit=110)  # 99 to train on: the last step is uneven
    # No random start: the images of one process do not know those of the other.
    geometry.Linf.random_point = lambda self, _: self.centre  # type: ignore[method-assign]
    rows: list[int] = []
    tensors: dict[str, Tensor] = {}
    for name, settings in {
        "pgd": {},
        "trades": {"objective": "natural", "awp": True, "ema": 0.9},
    }.items():
        recipe = Recipe(
            epochs=2, steps=2, epsilon=0.1, step_size=0.05, batch_size=32 // devices, **settings
        )
        trainer = Trainer(Plain(), data, recipe, engine=engine)
        load = trainer._batches.load

        def watched(own: Tensor, *, halve: bool, load=load, name=name, trainer=trainer):
            if name == "pgd" and trainer.progress.epoch == 0:
                rows.extend(own.tolist())
            return load(own, halve=halve)

        trainer._batches.load = watched  # type: ignore[method-assign]
        first, epochs = {}, []

        def remember(_: object, first=first, trainer=trainer) -> None:
            if not first:
                first.update({n: t.detach().clone() for n, t in trainer.state.tensors().items()})

        epochs = list(trainer.epochs(remember))
        tensors |= {f"{name} first {key}": value for key, value in first.items()}
        tensors |= {f"{name} last {key}": value for key, value in trainer.state.tensors().items()}
    noisy = Trainer(create_model("en1_resnet8", in_channels=1), data, recipe, engine=engine)
    list(noisy.epochs())
    tensors |= {f"noisy {key}": value for key, value in noisy.state.tensors().items()}
    noisy._seed_step(0, 0)
    facts = {
        "rank": engine.rank,
        "rows": rows,
        "data": data.fingerprint,
        "noise": noisy._noise.normal_like(torch.zeros(3)).tolist(),
        "starts": torch.rand(3, generator=noisy._attack).tolist(),
        "score": epochs[-1].score,
        "loss": epochs[-1].train_loss,
    }
    save_file({key: value.contiguous() for key, value in tensors.items()}, out / f"{engine.rank}.t")
    (out / f"{engine.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
