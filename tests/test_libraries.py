"""Networks of timm, torchvision and transformers as Feynman-Kac ensembles: slow, and if installed.

They have their usual depth and random weights: how well they classify is not the question.
"""

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from enresnet import load_model, save_model
from enresnet.attacks import IFGSM
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.models import ExternalNetwork, create_model, feynman_kac, set_noise, without_noise
from enresnet.models.external import import_timm, import_torchvision
from enresnet.models.frozen import FrozenCall, frozen
from enresnet.models.noise import noise_modules
from enresnet.publish import open_onnx
from problems import seeded
from processes import LINE, finish, kill, newest, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

# How many residual mappings each has.
NAMED = {
    "timm:resnet18": 8,
    "timm:resnet26d": 8,
    "timm:seresnet18": 8,
    "timm:convnext_atto": 12,
    "timm:vit_tiny_patch16_224": 24,
    "torchvision:resnet18": 8,
    "torchvision:wide_resnet50_2": 16,
    "torchvision:convnext_tiny": 18,
}


def needs(name):
    find = {"timm": import_timm, "torchvision": import_torchvision}[name.partition(":")[0]]
    try:
        find()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture(params=NAMED)
def named(request):
    needs(request.param)
    return request.param


def test_noise_after_every_residual_mapping(named, tmp_path):
    model = create_model(f"en2_{named}", noise=0.2, generator=seeded()).eval()
    assert len(list(noise_modules(model))) == 2 * NAMED[named]
    assert f"{NAMED[named]} residual mappings" in model.describe()
    images = torch.rand(3, 3, 32, 32, generator=seeded())
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))
        plain = copy.deepcopy(model)
        with without_noise(model), without_noise(plain):
            assert torch.equal(model(images), plain(images))
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors")
    for one in (model, again):
        set_noise(one, 0.0)
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images))


def test_members_differ_after_a_step(named):
    model = create_model(f"en2_{named}", generator=seeded()).train()
    copied = feynman_kac(
        create_model(named, generator=seeded()), members=2, init="copy", generator=seeded()
    ).train()
    images, labels = torch.rand(4, 3, 32, 32, generator=seeded()), torch.arange(4)
    for one in (model, copied):
        before = [dict(member.named_parameters()) for member in one.members]
        same = all(torch.equal(before[0][key], before[1][key]) for key in before[0])
        assert same == (one is copied)
        optimiser = torch.optim.SGD(one.parameters(), 0.1)
        functional.cross_entropy(one(images), labels).backward()
        optimiser.step()
        first, second = before
        assert any(not torch.equal(first[key], second[key]) for key in first)


def test_it_is_attacked_on_the_fast_path(named):
    model = create_model(f"en2_{named}", generator=seeded()).eval()
    images, labels = torch.rand(2, 3, 32, 32, generator=seeded()), torch.tensor([0, 1])
    with frozen(model, few=images) as call:
        assert isinstance(call, FrozenCall)
        assert call.independent
        assert call.before_noise(images) is not None
    attacked = IFGSM(steps=3, eot=2)(model, images, labels)
    assert (attacked - images).abs().max() <= 8 / 255


@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_transformers(kind):
    transformers = pytest.importorskip("transformers")
    if kind == "resnet":
        config = transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], num_labels=10
        )
        model = transformers.ResNetForImageClassification(config)
    else:
        config = transformers.ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=10,
        )
        model = transformers.ViTForImageClassification(config)
    images = torch.rand(2, 3, 32, 32, generator=seeded())
    ensemble = feynman_kac(model.eval(), members=2, noise=0.2, example=images, generator=seeded())
    assert len(list(noise_modules(ensemble))) == 2 * (4 if kind == "resnet" else 6)
    with torch.no_grad():
        with without_noise(ensemble):
            torch.testing.assert_close(ensemble(images), model(images).logits)
        assert not torch.equal(ensemble(images), ensemble(images))
    assert isinstance(ensemble.members[0], ExternalNetwork)
    IFGSM(steps=2, eot=2)(ensemble, images, torch.tensor([0, 1]))


def test_gray_images_and_other_numbers_of_classes():
    needs("timm:resnet18")
    model = create_model("en1_timm:resnet18", num_classes=3, in_channels=1, image_size=48).eval()
    assert model(torch.rand(2, 1, 48, 48)).shape == (2, 3)
    needs("torchvision:resnet18")
    with pytest.raises(ValueError, match="take colour images, 3 channels; found 1: timm:resnet18"):
        create_model("torchvision:resnet18", in_channels=1)


def test_names_that_there_are_not():
    needs("timm:resnet18")
    with pytest.raises(ValueError, match=r"timm has no network 'resnet17'\. Did you mean"):
        create_model("timm:resnet17")
    needs("torchvision:resnet18")
    with pytest.raises(ValueError, match="torchvision has no classifier 'resnet17'"):
        create_model("torchvision:resnet17")


def test_what_timm_says_of_normalisation():
    needs("timm:resnet18")
    model = create_model("timm:vit_tiny_patch16_224")
    assert model.mean.flatten().tolist() == [0.5, 0.5, 0.5]
    assert create_model("timm:resnet18").mean.flatten().tolist() == pytest.approx(
        [0.485, 0.456, 0.406]
    )


def test_a_description_larger_than_its_tensors_is_refused_before_it_is_built(tmp_path):
    import json

    from safetensors.torch import save_file

    from enresnet.models.storage import FORMAT, content_digest

    needs("timm:resnet18")
    for name, classes in (("timm:vit_giant_patch14_224", 10), ("timm:resnet18", 10**9)):
        config = {
            "source": {
                "source": name,
                "num_classes": classes,
                "in_channels": 3,
                "image_size": 224,
            },
            "kind": "x",
            "mean": None,
            "std": None,
            "noise": None,
        }
        text = json.dumps({"external": config})
        tensors = {"a": torch.zeros(1)}
        header = {"format": FORMAT, "model": text, "sha256": content_digest(tensors, text)}
        path = tmp_path / "small.safetensors"
        save_file(tensors, path, header)
        with pytest.raises(ValueError, match="larger than the tensors that come with it"):
            load_model(path)


def test_trained_killed_resumed_evaluated_exported_loaded(tmp_path, monkeypatch, capsys):
    """The way of somebody else's network through the package, on CIFAR-10 where it is there."""
    needs("timm:resnet18")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    try:
        load_data("cifar10")
        data = "--data cifar10 --limit 5000"
    except OSError:
        data = "--data digits --epsilon 0.1 --batch-size 32 --learning-rate 0.02"
    train = f"train --model timm:resnet18 --members 2 {data} --recipe fast --epochs 1".split()
    run = tmp_path / "run"
    process = start(*train, "--checkpoint-every", 0.2, "--out", run)
    wait_for(lambda: newest(run) is not None or process.poll() is not None, seconds=300)
    kill(process)
    assert not (run / "best.safetensors").is_file(), "it was over before the kill"
    assert LINE.search(finish(*train, "--out", run))
    assert main("evaluate run --attacks strongest --budget 300 --limit 8 --draws 2".split()) == 0
    assert "strongest" in json.loads((run / "evaluation.json").read_text())["best"]["robust"]
    assert main("export run --format onnx --noise input --out a.onnx".split()) == 0
    assert "its logits are the network's" in " ".join(capsys.readouterr().out.split())
    assert open_onnx("a.onnx").get_inputs()
    assert len(load_model(run / "best.safetensors").members) == 2


def test_torch_compile():
    needs("timm:resnet18")
    model = create_model("en1_timm:resnet18", generator=seeded()).eval()
    compiled = torch.compile(model, backend="aot_eager")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert not torch.equal(compiled(images), compiled(images))
    assert isinstance(model.members[0].network, nn.Module)
