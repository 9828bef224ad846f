"""Models on the Hugging Face Hub: safetensors, a description, and a card with what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from enresnet.common import checks
from enresnet.common.files import atomic_write
from enresnet.common.requirements import extras, install_command
from enresnet.common.tables import as_markdown
from enresnet.common.text import brief
from enresnet.evaluation import load_results
from enresnet.models import load_model, save_model
from enresnet.training import Run

try:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError(
        f"the Hub needs huggingface_hub, which cannot be imported ({error}): "
        f"{install_command(extras()['hub'])}"
    ) from error

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LARGEST = 10_000_000  # bytes of a config.json
PAPER = "https://arxiv.org/abs/1811.10745"
_COLUMNS = ("images", "accuracy", "low", "high", "number", "draws", "epsilon", "attack", "data")


class HubModel(
    ModelHubMixin,
    library_name="enresnet",
    paper_url=PAPER,
    pipeline_tag="image-classification",
    tags=["adversarial-robustness", "feynman-kac", "image-classification"],
):
    """A model and its card on the Hub: ``save_pretrained``, ``push_to_hub`` and back.

    The weights go into one safetensors file with a description that the model is built again from;
    no pickle is written or read. The card shows what was measured, also as ``model-index``.

    Args:
        model: A model of :func:`~enresnet.create_model` or :func:`~enresnet.feynman_kac`.
        name: What the card calls it.
        classes: The names of the classes.
        data: The data it was trained on.
        measured: What was measured: the rows of :func:`~enresnet.load_results`.

    Attributes:
        model: The model.
        name: What the card calls it.
        classes: The names of the classes.
        data: The data it was trained on.
        measured: What was measured.

    Shape:
        - images, in a call: N x C x H x W in [0, 1]
        - result: N x classes, logits

    Raises:
        TypeError: The model is not an ``nn.Module``, or the rows are not mappings.

    Example::

        from enresnet.publish import HubModel

        HubModel(model, name="my model").save_pretrained("published")
        model = HubModel.from_pretrained("published").model
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str = "",
        classes: Sequence[str] = (),
        data: str = "",
        measured: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, found {type(model).__name__}")
        self.model = model
        self.name = str(name or type(model).__name__)
        self.classes, self.data = tuple(map(str, classes)), str(data)
        for row in measured:
            if not isinstance(row, Mapping):
                raise TypeError(f"measured must hold rows, found {checks.brief(row)}")
        self.measured = [{key: row[key] for key in _COLUMNS if key in row} for row in measured]

    @classmethod
    def of_run(cls, folder: str | os.PathLike[str], *, trust_code: bool = False) -> HubModel:
        """Return the best network of a run, with its classes and all that was measured of it.

        Args:
            folder: The run's folder.
            trust_code: True imports and runs the code that builds the network, where the run names
                some.

        Raises:
            FileNotFoundError: The folder is not a run, or has no network yet.
            ValueError: The run is damaged, or names code.
        """
        run = Run.open(folder)
        rows = []
        if (run.folder / "evaluation.json").is_file():
            found = load_results(run.folder)
            rows = [row for row in found.rows() if str(row["section"]).startswith("best")]
        return cls(
            run.load("best", trust_code=trust_code),
            name=run.config.model,
            classes=run.config.classes,
            data=run.config.data,
            measured=rows,
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        trust_code: bool = False,
    ) -> HubModel:
        """Return what :meth:`save_pretrained` wrote to a folder, or :meth:`push_to_hub` to the Hub.

        Args:
            name: The folder, or USER/NAME on the Hub.
            revision: The branch, tag or commit on the Hub; its main branch by default.
            token: For the Hub; by default that of ``huggingface-cli login``.
            cache_dir: Where downloads are kept; by default where huggingface_hub keeps them.
            force_download: True downloads again what is there already.
            local_files_only: True never asks the Hub.
            trust_code: True imports and runs the code that builds the network, where the file names
                some.

        Returns:
            The model and what its card says.

        Raises:
            FileNotFoundError: The folder holds no model.
            ValueError: A file is damaged, of another library, or names code.
        """
        try:
            found: HubModel = super().from_pretrained(
                os.fspath(name),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                trust_code=trust_code,
            )
        except (AttributeError, RecursionError, TypeError, json.JSONDecodeError) as error:
            # of what reads config.json
            raise ValueError(
                f"{name} is not the description of a model of enresnet: {error}"
            ) from error
        return found

    def __call__(self, images: Tensor) -> Any:
        """Return the model's logits for images in [0, 1]."""
        return self.model(images)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(self.model, save_directory / WEIGHTS)
        facts = {
            "library": "enresnet",
            "name": self.name,
            "classes": list(self.classes),
            "data": self.data,
            "measured": self.measured,
        }
        with atomic_write(save_directory / CONFIG) as temporary:
            temporary.write_text(json.dumps(facts, indent=2) + "\n")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        trust_code: bool = False,
        **_: Any,
    ) -> HubModel:
        def find(name: str) -> Path:
            if (folder := Path(model_id)).is_dir():
                return folder / name
            return Path(
                hf_hub_download(
                    model_id,
                    name,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )

        facts = _read_facts(find(CONFIG))
        return cls(load_model(find(WEIGHTS), trust_code=trust_code), **facts)

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return the card: a page in Markdown, with the measured accuracies as ``model-index``."""
        card = ModelCardData(
            model_name=self.name,
            library_name="enresnet",
            pipeline_tag="image-classification",
            tags=["adversarial-robustness", "feynman-kac"],
            datasets=[self.data] if self.data in ("cifar10", "cifar100") else None,
            eval_results=[self._result(row) for row in self.measured] or None,
        )
        return ModelCard(f"---\n{card.to_yaml()}\n---\n\n{self._page()}")

    def _result(self, row: Mapping[str, Any]) -> EvalResult:
        clean = row["images"] == "clean"
        radius = "" if clean else f" at epsilon {brief(row.get('epsilon'))}"
        measured = "natural accuracy" if clean else f"robust accuracy under {row['images']}{radius}"
        # The format has no field for either, and its readers show the name beside the value.
        number = f"{row['number']} images, " if "number" in row else ""
        interval = f"95 % interval {100 * row['low']:.1f}-{100 * row['high']:.1f}"
        return EvalResult(
            task_type="image-classification",
            dataset_type=str(row.get("data", self.data)),
            dataset_name=str(row.get("data", self.data)),
            dataset_split="test",
            metric_type="accuracy",
            metric_name=f"{measured} ({number}{interval})",
            metric_value=round(100 * float(row["accuracy"]), 2),
        )

    def _page(self) -> str:
        rows: list[Any] = [
            {
                "images": str(row["images"]),
                "accuracy, %": f"{100 * row['accuracy']:.1f} "
                f"({100 * row['low']:.1f}-{100 * row['high']:.1f})",
                "number": str(row.get("number", "")),
                "draws": str(row.get("draws", "")),
                "attack": str(row.get("attack") or ""),
            }
            for row in self.measured
        ]
        words = [f"# {self.name}\n", "A network of EnResNet: from images in [0, 1] to logits.\n"]
        if self.classes:
            words.append(f"Classes: {', '.join(self.classes)}.\n")
        words.append(
            "```python\nfrom enresnet.publish import HubModel\n\n"
            'model = HubModel.from_pretrained("USER/NAME").model\n```\n'
        )
        words.append("## What was measured\n")
        if rows:
            words.append(as_markdown(rows))
            words.append(
                "On test images, with 95 % intervals over images and draws of the noise. Accuracies"
                " hold for these weights, these images and these attacks: a stronger attack may "
                "leave less.\n"
            )
        else:
            words.append("Nothing yet: its robustness is not known.\n")
        words.append(f"The method: [Wang, Yuan, Shi and Osher]({PAPER}).\n")
        return "\n".join(words)


def _read_facts(path: Path) -> dict[str, Any]:
    """Return what config.json says, if it is what we write."""
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} is not a model of enresnet: it has no {path.name}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is too large for a description: {path.stat().st_size} bytes")
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        if facts.pop("library") != "enresnet":
            raise ValueError("it is of another library")
        known = {"name": str, "classes": list, "data": str, "measured": list}
        if set(facts) != set(known) or any(not isinstance(facts[k], v) for k, v in known.items()):
            raise ValueError(f"it must hold {', '.join(known)}")
        for row in facts["measured"]:
            [float(row[key]) for key in ("accuracy", "low", "high")]
            str(row["images"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not the description of a model of enresnet: {error}"
        ) from error
    return facts
