"""What was found of a model, kept in a folder: evaluation.json and scores.safetensors.

``evaluation.json`` holds a section for each checkpoint, radius and data, in it the natural accuracy
and the robust ones by attack; attacks measured later join those that are there, and fewer images
never replace more. ``scores.safetensors`` holds how often each single image was right; it is read
and written by :mod:`enresnet.evaluation.score_file`, and only where it is asked for: what
``evaluation.json`` says can be shown without torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enresnet.common.files import atomic_write, has_to_itself, writable
from enresnet.common.reading import safetensors_digest
from enresnet.common.text import brief
from enresnet.evaluation.accuracy import NATURAL, Accuracy
from enresnet.evaluation.evaluation import Evaluation, read_sections
from enresnet.evaluation.rows import epsilon_words

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("model", "weights", "data_name", "checkpoint", "epsilon")  # what all entries share
DECIDING = ("seed", "draws", "batch_size")  # a result depends on, beside weights and settings
EVALUATION, SCORES = "evaluation.json", "scores.safetensors"
SAME = 1e-5  # accuracies are kept in float32


@dataclass(frozen=True)
class Section:
    """What is kept of one checkpoint at one radius on some images, by however many evaluations."""

    about: dict[str, Any]
    evaluation: Evaluation

    @property
    def title(self) -> str:
        """The model, the images and how far attacks went, as far as each is known."""
        values = [self.evaluation.natural, *self.evaluation.robust.values()]
        counts = {value.images for value in values}
        number = [f"{counts.pop()} images"] if len(counts) == 1 else []  # else the rows say
        data, epsilon = self.about["data_name"], self.about["epsilon"]
        reached = epsilon_words(values) or (epsilon is not None and f"epsilon = {brief(epsilon)}")
        on = ", ".join([*([] if data is None else [data]), *number]) or "images"
        return f"{self.about['model']} on {on}" + (f", {reached}" if reached else "")


@dataclass(frozen=True)
class ResultsFolder:
    """The folder that results are kept in."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of results."""
        return self.folder / EVALUATION

    def check(self) -> None:
        """Raise if what is there is damaged, or nothing can be added; long work asks first."""
        self.sections()
        self.scores()
        if self.folder.is_dir():
            writable(self.path)
            writable(self.folder / SCORES)

    def sections(self) -> dict[str, Any]:
        """Return all that is kept."""
        if not self.path.exists():
            return {}
        if not self.path.is_file():
            raise ValueError(f"{self.path} is no file; remove it")
        stored = read_sections(self.path)
        for name, section in stored.items():
            if reason := _malformed(section):
                raise ValueError(
                    f"{self.path} is damaged: its section {name!r} {reason}; put a copy in its "
                    "place, or remove it"
                )
        return stored

    def outdated(self, name: str) -> str:
        """Return a sentence if a section is of other weights than its file holds now, else ""."""
        section = self.sections().get(name, {})
        for entry in (section.get(NATURAL, {}), *section.get("robust", {}).values()):
            file = (entry.get("circumstances") or {}).get("file")
            if not isinstance(file, dict) or not isinstance(file.get("name"), str):
                continue
            now = safetensors_digest(self.folder / Path(file["name"]).name)
            if now is not None and now != file.get("sha256"):
                return (
                    f"{self.folder} ({name}) was measured with other weights than "
                    f"{file['name']} holds now: evaluate it again"
                )
        return ""

    def disagreement(self, section: str, attack: str) -> str:
        """Return a sentence if single images have other scores than the accuracy says, else "".

        Then the two files are of different networks: one of them was copied here.
        """
        stored = self.sections().get(section, {})
        entry = stored.get(NATURAL) if attack == NATURAL else stored.get("robust", {}).get(attack)
        counts, about = self.scores()
        key = f"{section}/{attack}"
        if not entry or key not in counts or not isinstance(entry.get("accuracy"), float):
            return ""
        found = float(counts[key].double().mean()) / about[key]["draws"]
        if abs(found - entry["accuracy"]) < SAME:
            return ""
        return (
            f"{self.folder}: {SCORES} gives {100 * found:.2f} % for {attack} ({section}) and "
            f"{EVALUATION} {100 * entry['accuracy']:.2f} %: they are not of one evaluation; "
            "evaluate again"
        )

    def names(self) -> list[str]:
        """Return the names of the sections, of which there is at least one."""
        names = list(self.sections())
        if not names:
            raise FileNotFoundError(f"{self.folder} has no evaluation: run enresnet evaluate first")
        return names

    def section(self, name: str) -> Section:
        """Return one section."""
        sections = self.sections()
        if name not in sections:
            known = f"it has {', '.join(sections)}" if sections else "run enresnet evaluate first"
            raise FileNotFoundError(f"{self.folder} has no evaluation of {name!r}: {known}")
        stored = sections[name]
        try:
            return Section(
                {key: stored[key] for key in ABOUT},
                Evaluation.from_json(stored),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is damaged: its section {name!r} is not whole "
                f"({type(error).__name__}: {error}); evaluate again, or put a copy in its place"
            ) from error

    def add(
        self, section: str, result: Evaluation, *, data: str, conditions: dict[str, Any]
    ) -> list[str]:
        """Keep a result, and return what there is to say of those that were there.

        ``data`` tells the images apart from others, whatever their number: a section that holds
        results on other images is left to them, and this one is named after its data. A result on
        fewer images, or of fewer draws, does not replace one of more. Results of other weights make
        room, and stay in files of another name. Accuracies that were known before, which come
        without scores of single images, are left as they are.
        """
        with has_to_itself(self.folder):  # another evaluation may end at the same time
            return self._add(section, result, data, conditions)

    def _add(
        self, section: str, result: Evaluation, data: str, conditions: dict[str, Any]
    ) -> list[str]:
        stored, said = self.sections(), []
        section = _place(stored, section, data, conditions)
        known = stored.get(section, {})
        if known and known.get("weights") != conditions["weights"]:
            said.append(f"results of other weights under {section!r} {self._put_aside(known)}")
            known = {}
        before = {**known.get("robust", {})}
        if known.get(NATURAL):
            before[NATURAL] = known[NATURAL]
        measured = {
            name: value
            for name, value in {NATURAL: result.natural, **result.robust}.items()
            if value.scored is not None
        }
        for name, value in list(measured.items()):
            if name in before:
                word = _word(name, before[name], value, conditions)
                same = before[name].get("settings", value.settings) == value.settings
                more_draws = same and before[name].get("draws", 0) > value.draws
                more_images = before[name].get("images", 0) - value.images
                if more_images > 0 or (more_images == 0 and more_draws):
                    del measured[name]
                    said.append(f"kept {word}")
                elif word:
                    said.append(f"replaced {word}")
        entries = before | {
            name: {**value.to_json(), "data": data, "circumstances": conditions}
            for name, value in measured.items()
        }
        stored[section] = {
            **{name: conditions[name] for name in ABOUT},
            NATURAL: entries.pop(NATURAL, {}),
            "robust": entries,
        }
        from enresnet.evaluation.score_file import add_scores

        add_scores(self.folder / SCORES, section, measured, data=data, fresh=not known)
        with atomic_write(self.path) as temporary:
            temporary.write_text(json.dumps(stored, indent=2) + "\n")
        return said

    def known(
        self,
        section: str,
        wanted: Mapping[str, dict[str, Any] | None],
        *,
        data: str,
        images: int,
        conditions: dict[str, Any],
    ) -> dict[str, Accuracy]:
        """Return those of the wanted results that are here already.

        ``wanted`` has the settings of the attacks by name, None for clean images. A result counts
        if weights, images, settings and what fixes the draws are the same.
        """
        stored = self.sections()
        there = stored.get(_place(stored, section, data, conditions), {})
        if there.get("weights") != conditions["weights"]:
            return {}
        entries = {NATURAL: there[NATURAL], **there["robust"]}
        found = {}
        for name, settings in wanted.items():
            entry = entries.get(name) or {}
            how = entry.get("circumstances")
            if (
                isinstance(how, dict)
                and (entry.get("data"), entry.get("images")) == (data, images)
                and entry.get("settings") == json.loads(json.dumps(settings))
                and all(how.get(key) == conditions[key] for key in DECIDING)
            ):
                with suppress(LookupError, TypeError, ValueError, AttributeError):  # not whole
                    found[name] = Accuracy.from_json(entry)
        return found

    def _put_aside(self, known: dict[str, Any]) -> str:
        """Copy both files to new names; return the words that say where."""
        name, number = str(known.get("weights"))[:8], 1
        while (aside := self.folder / f"evaluation.{name}-{number}.json").exists():
            number += 1
        for path in (self.folder / SCORES, self.path):
            if path.is_file():
                with atomic_write(aside.with_suffix(path.suffix)) as temporary:
                    shutil.copyfile(path, temporary)
        return f"are kept aside in {aside}"

    def scores(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return how often each image was right, and what that depends on, by SECTION/ATTACK."""
        from enresnet.evaluation.score_file import read_scores

        return read_scores(self.folder / SCORES)


def _malformed(section: Any) -> str:
    """Return what is wrong with a section, as far as adding to it would matter; "" if nothing."""
    if not isinstance(section, dict):
        return f"must be a mapping, found a {type(section).__name__}"
    robust = section.get("robust")
    if not isinstance(section.get(NATURAL), dict) or not isinstance(robust, dict):
        return f"must hold {NATURAL} and robust, each a mapping"
    for name, entry in {NATURAL: section[NATURAL], **robust}.items():
        if not isinstance(entry, dict):
            return f"must have a mapping under {name!r}, found a {type(entry).__name__}"
        for key, kinds in (("accuracy", (int, float)), ("images", (int,)), ("data", (str,))):
            if key in entry and not isinstance(entry[key], kinds):
                return f"has {entry[key]!r} as the {key} of {name!r}"
        if entry and "accuracy" not in entry:
            return f"has no accuracy of {name!r}"
    return ""


def _place(stored: dict[str, Any], section: str, data: str, conditions: dict[str, Any]) -> str:
    """Return the section for results on some images; that of other images is left to them."""
    if _data_of(stored.get(section, {})) not in (None, data):
        section = f"{section} on {conditions['data_name']}"
        if _data_of(stored.get(section, {})) not in (None, data):
            section = f"{section}, {data[:8]}"
    return section


def _data_of(section: dict[str, Any]) -> str | None:
    """Return the digest of the images that a section's results are on."""
    entries = [section.get(NATURAL, {}), *section.get("robust", {}).values()]
    return next((entry["data"] for entry in entries if "data" in entry), None)


def _word(name: str, before: dict[str, Any], value: Accuracy, conditions: dict[str, Any]) -> str:
    """Return what differs between a result that was there and another; "" if nothing does."""
    how = before.get("circumstances") or {}
    pairs = {
        "images": (before.get("images"), value.images),
        "draws": (before.get("draws"), value.draws),
        **{key: (how.get(key), conditions.get(key)) for key in ("seed", "batch_size")},
    }
    parts = [
        f"{key.replace('_', ' ')} {there}, now {here}"
        for key, (there, here) in pairs.items()
        if there is not None and here is not None and there != here
    ]
    there, here = before.get("attack") or "clean images", value.attack or "clean images"
    if there != here:
        parts.append(f"{there}, now {here}")
    return f"{name}: {'; '.join(parts)}" if parts else ""
