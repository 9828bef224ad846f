r"""How a recipe changes during a training: it may begin easy and end hard.

.. math:: \epsilon(t) = \epsilon \min\Bigl(1, \frac{t}{g}\Bigr), \qquad t \in [0, 1]

with g the recipe's ``epsilon_growth``. A one-step objective may end with an attack of several steps
(``final_steps`` from ``final_from`` on), and the first part may see images of half the side
(``low_resolution``), at a quarter of the cost, where the images are large enough and the network
takes both sizes.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional

from enresnet.training.memory import activation_bytes
from enresnet.training.objectives import OBJECTIVES
from enresnet.training.recipe import Recipe
from enresnet.training.strides import outstripped_convolution

REACH = 1.5  # of epsilon: how far the steps of the last part would lead in a line
SMALLEST = 8  # pixels a side that networks take


def recipe_at(recipe: Recipe, done: float) -> Recipe:
    """Return the recipe as it is when a fraction ``done`` of the training is over."""
    growing = done < recipe.epsilon_growth
    epsilon = recipe.epsilon * done / recipe.epsilon_growth if growing else recipe.epsilon
    if recipe.final_steps and done >= recipe.final_from:
        step = REACH * epsilon / recipe.final_steps
        return replace(
            recipe,
            objective=OBJECTIVES[recipe.objective].several_steps,
            steps=recipe.final_steps,
            step_size=step,
            epsilon=epsilon,
        )
    return replace(recipe, epsilon=epsilon) if growing else recipe


def why_not_halved(model: nn.Module, images: Tensor) -> str:
    """Return why the model cannot be trained on images of half the side; "" if it can."""
    if min(images.shape[2:]) < 2 * SMALLEST:
        return f"images of {images.shape[2]} x {images.shape[3]} are too small"
    try:
        activation_bytes(model, halved(images))  # a pass as in training, which leaves no trace
    except Exception:  # whatever a network of the user's says to another size
        return "the network takes images of one size only"
    if name := outstripped_convolution(model, halved(images)):
        return f"{name} has a larger stride than half the images leave it pixels"
    return ""


def halved(images: Tensor) -> Tensor:
    """Return the images at half the side: the mean of every 2 x 2 pixels."""
    return functional.avg_pool2d(images, 2)
