"""Networks of timm and torchvision whose blocks are not the common ones: slow, and if installed."""

import pytest
import torch
from torch import nn

from enresnet.models import feynman_kac
from enresnet.models.external import import_timm, import_torchvision
from problems import seeded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IMAGES = torch.rand(2, 3, 64, 64, generator=seeded())


def group_norm():
    models = import_torchvision().models
    return models.resnet18(num_classes=10, norm_layer=lambda width: nn.GroupNorm(8, width))


def frozen_norm():
    library = import_torchvision()
    return library.models.resnet18(num_classes=10, norm_layer=library.ops.FrozenBatchNorm2d)


def of_timm(name):
    return lambda: import_timm().create_model(name, num_classes=10)


# How many residual mappings each has.
@pytest.mark.parametrize(
    ("build", "count"),
    [(group_norm, 8), (frozen_norm, 8), (of_timm("resnet50_gn"), 16), (of_timm("dla34"), 12)],
    ids=[
        "torchvision GroupNorm",
        "torchvision FrozenBatchNorm2d",
        "timm resnet50_gn",
        "timm dla34",
    ],
)
def test_every_residual_mapping_is_found(build, count):
    try:
        model = build().eval()
    except ImportError as error:
        pytest.skip(str(error))
    quiet = feynman_kac(model, members=1, noise=0.0, example=IMAGES)
    assert f"{count} residual mappings" in quiet.describe()
    with torch.no_grad():
        torch.testing.assert_close(quiet(IMAGES), model(IMAGES))
