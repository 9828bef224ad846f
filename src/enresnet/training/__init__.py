"""From a recipe to a trained network: the loop, its objectives, its folder."""

from enresnet.training.engine import Engine
from enresnet.training.integrate import integrate
from enresnet.training.recipe import Recipe, list_recipes, load_recipe
from enresnet.training.run import Run, RunConfig
from enresnet.training.standing import Epoch, Step
from enresnet.training.train import train
from enresnet.training.trainer import Trainer
from enresnet.training.watcher import Watcher

__all__ = [
    "Engine",
    "Epoch",
    "Recipe",
    "Run",
    "RunConfig",
    "Step",
    "Trainer",
    "Watcher",
    "integrate",
    "list_recipes",
    "load_recipe",
    "train",
]
