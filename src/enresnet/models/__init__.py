"""What classifies: noise-injected residual networks and their ensembles."""

from enresnet.models.ensemble import Ensemble, set_lean
from enresnet.models.noise import (
    NoiseInjection,
    inject_noise,
    seed_noise,
    set_noise,
    using_noise,
    without_noise,
)
from enresnet.models.normalized import Normalized
from enresnet.models.pretrained import ModelCard, find_pretrained, list_pretrained
from enresnet.models.resnet import ResNet, resnet, wide_resnet
from enresnet.models.storage import load_model, save_model
from enresnet.models.zoo import (
    canonical_name,
    create_model,
    list_models,
    paper_name,
    same_architecture,
)

__all__ = [
    "Ensemble",
    "ModelCard",
    "NoiseInjection",
    "Normalized",
    "ResNet",
    "canonical_name",
    "create_model",
    "find_pretrained",
    "inject_noise",
    "list_models",
    "list_pretrained",
    "load_model",
    "paper_name",
    "resnet",
    "same_architecture",
    "save_model",
    "seed_noise",
    "set_lean",
    "set_noise",
    "using_noise",
    "wide_resnet",
    "without_noise",
]
