"""The card of shipped weights, as a page of Markdown."""

from __future__ import annotations

from enresnet.common.tables import as_markdown
from enresnet.evaluation.rows import with_interval
from enresnet.models import ModelCard

LIMITS = """\
- It is a small network for research and teaching. The table above says how often it errs, and how
  often an attacker who may change every pixel a little makes it err.
- The accuracies hold for these weights, these test images and these attacks. Another training by
  the same recipe gives other ones, and a stronger attack may leave less.
- Nothing is known of it beyond the radius it was trained with, under other kinds of change
  (rotations, patches, blur, weather) or on images from elsewhere.
- It names one of its classes for every image, whatever the image shows.

Not for decisions about people, for safety, or for any place where a wrong answer does harm."""


def model_card(card: ModelCard) -> str:
    """Return the page."""
    rows = [
        {
            "images": value.images,
            "number": str(value.number),
            "accuracy, %": with_interval(value.accuracy, value.interval),
            "draws": str(value.draws),
            "attack": value.attack or "",
        }
        for value in card.measured
    ]
    channels, height, width = card.image_shape
    again = "\n".join(
        f"enresnet evaluate {card.name} --attacks {value.images} --limit {value.number}"
        for value in card.measured
        if value.images != "clean"
    )
    chosen = f" {card.chosen}" if card.chosen else ""
    settings = ", ".join(f"{name} {value}" for name, value in card.recipe.items())
    return f"""\
# {card.name}

```python
model = enresnet.load_model("{card.name}")  # images in [0, 1], N x {channels} x {height} x {width}
```

{card.parameters / 1e6:.2f} M parameters, {len(card.classes)} classes
({", ".join(card.classes[:10])}{", ..." if len(card.classes) > 10 else ""}).

## What was measured

{as_markdown(rows)}
95 % intervals over images and draws; `accuracy` is that of a single prediction. A noisy network is
asked `draws` times about every image. Rows of fewer images are on the first ones: do not subtract
one row from another. To measure again:

```
{again}
```

## How it was trained

```
{card.command}
```

On the training images of {card.data} (a tenth held out for validation), seed {card.seed}, commit
`{card.commit or "not known"}`. {card.passes:g} forward and backward passes over the data,
{card.hours * 60:.0f} minutes on {card.processor}. Kept was {card.kept}. Weights
are stored in half precision, and the accuracies are those of the stored weights.{chosen}

The recipe in full: {settings}.

## What it is not for

{LIMITS}

SHA-256 of the file: `{card.sha256}`
"""
