"""Networks that are not ours: named, trained, stored, loaded again; code runs only when trusted."""

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from enresnet import feynman_kac, load_model, save_model
from enresnet.cli import main
from enresnet.models import (
    Ensemble,
    ExternalNetwork,
    canonical_name,
    create_model,
    is_noisy,
    names_code,
    same_architecture,
    set_noise,
    set_recompute,
)
from enresnet.models.noise import noise_modules
from enresnet.models.storage import content_digest, describe
from enresnet.training import Run, RunConfig, integrate, load_recipe, resume, train

MODULE = """
import pathlib
import torch
from torch import nn

with open("imported", "a") as file:  # how often it was imported
    file.write("x")

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(torch.relu(self.bn(self.conv(x))))

class Net(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

def build(num_classes=10, in_channels=3):
    return Net(num_classes, in_channels)

def wrong_size():
    return Net(7, 3)

def fails(num_classes):
    raise RuntimeError("no weights today")

def no_network():
    return 3

def plain(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

def strided(num_classes, in_channels):
    down = [nn.Conv2d(in_channels if not n else 8, 8, 3, 2, 1) for n in range(5)]
    return nn.Sequential(*down, nn.Flatten(), nn.Linear(8, num_classes))

ready = Net(10, 3)
"""
SOURCE = "own_networks:build"
RECIPE = load_recipe("fast", epochs=1, epsilon=0.1, batch_size=32)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """The user's folder, with a module of theirs in it; they work there."""
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("own_networks", None)


def forget():
    """Forget the user's module, as a new process has not imported it."""
    sys.modules.pop("own_networks", None)
    Path("imported").write_text("")


def imported():
    return len(Path("imported").read_text())


class TestNames:
    def test_spelling(self):
        assert canonical_name("En2_timm:resnet18.a1_in1k") == "en2_timm:resnet18.a1_in1k"
        assert canonical_name("TIMM:resnet18") == "timm:resnet18"
        assert canonical_name("en_3_My.Module:Build+resnet20") == "en3_My.Module:Build+resnet20"
        assert is_noisy("en1_timm:resnet18")
        assert not is_noisy("timm:resnet18")
        assert names_code("resnet20+a:b")
        assert not names_code("en2_torchvision:resnet18")

    @pytest.mark.parametrize(
        "name",
        [
            "timm:hf-hub:somebody/model",
            "timm:local-dir:/etc",
            "timm:",
            "timm:../x",
            "torchvision:a/b",
            "http://x:y",
            "a:b:c",
            ":b",
            "a:",
            "en0_timm:resnet18",
        ],
    )
    def test_others_are_refused(self, name):
        with pytest.raises(ValueError, match=r"unknown model|number of members"):
            canonical_name(name)


class TestCreated:
    def test_for_the_images_that_there_are(self):
        model = create_model(
            f"en2_{SOURCE}", num_classes=4, in_channels=1, image_size=8, generator=seeded()
        )
        assert isinstance(model, Ensemble)
        assert model(torch.rand(3, 1, 8, 8)).shape == (3, 4)
        assert len(list(noise_modules(model))) == 4
        first, second = (member.network.stem.weight for member in model.members)
        assert not torch.equal(first, second)
        assert "2 residual mappings" in model.describe()
        assert same_architecture(model, f"en2_{SOURCE}")
        assert not same_architecture(model, SOURCE)
        assert not same_architecture(model, "en2_own_networks:Net")

    def test_seeds_fix_the_weights_and_torch_is_left_alone(self):
        before = torch.random.get_rng_state()
        one, two = (create_model(f"en2_{SOURCE}", generator=seeded(3)) for _ in range(2))
        assert torch.equal(before, torch.random.get_rng_state())
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name])

    def test_alone_it_has_no_noise_and_may_be_normalised(self):
        model = create_model(SOURCE, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)).eval()
        assert isinstance(model, ExternalNetwork)
        images = torch.rand(2, 3, 32, 32)
        given = (images - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor(
            [0.2, 0.2, 0.1]
        ).view(3, 1, 1)
        torch.testing.assert_close(model(images), model.network(given))
        with pytest.raises(ValueError, match="write en1_own_networks:build"):
            create_model(SOURCE, noise=0.1)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("own_networks:wrong_size", r"must return logits, 2 x 10 for two images; found \(2, 7"),
            ("own_networks:fails", r"no weights today\n.*own_networks.py, line \d+\n.*raise"),
            ("own_networks:no_network", "must return an nn.Module, found int"),
            ("own_networks:ready", "must be a function that builds a network"),
            ("own_networks:absent", "module own_networks has no absent"),
            ("no_such_module:build", "there is no module no_such_module"),
            ("en2_own_networks:plain", "no residual connection"),
        ],
    )
    def test_what_cannot_be_built_says_why(self, name, words):
        with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words):
            create_model(name)

    def test_libraries_that_are_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "timm", None)
        with pytest.raises(ImportError, match="pip install timm"):
            create_model("timm:resnet18")


class TestStored:
    def test_a_file_of_the_users_own_code(self):
        model = create_model(f"en2_{SOURCE}", mean=(0.5,), std=(0.2,), generator=seeded()).eval()
        set_noise(model, 0.3)
        save_model(model, "model.safetensors")
        forget()
        with pytest.raises(ValueError, match=r"names code .*own_networks:build.*trust_code=True"):
            load_model("model.safetensors")
        assert imported() == 0
        loaded = load_model("model.safetensors", trust_code=True, generator=seeded(1))
        assert imported() == 1
        assert describe(loaded) == describe(model)
        images = torch.rand(2, 3, 32, 32)
        set_noise(model, 0.0)
        noisy = loaded(images)
        assert not torch.equal(noisy, loaded(images))
        set_noise(loaded, 0.0)
        assert torch.equal(loaded(images), model(images))

    def test_a_network_that_was_handed_over(self):
        model = create_model(SOURCE).network
        made = feynman_kac(model, members=2, init="copy", generator=seeded()).eval()
        save_model(made, "model.safetensors")
        forget()
        with pytest.raises(ValueError, match=r"only its owner knows .*own_networks.Net.*network="):
            load_model("model.safetensors", trust_code=True)
        again = load_model("model.safetensors", network=copy.deepcopy(model))
        for one in (made, again):
            set_noise(one, 0.0)
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(made(images), again(images))

    def test_the_same_weights_give_the_same_bytes(self, tmp_path):
        for name in "ab":
            save_model(create_model(f"en1_{SOURCE}", generator=seeded()), name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.parametrize("what", ["module", "number", "many", "words", "missing", "deep"])
    def test_damaged_descriptions_get_a_sentence(self, what):
        save_model(create_model(f"en1_{SOURCE}", generator=seeded()), "model.safetensors")
        with safe_open("model.safetensors", framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        description = json.loads(header["model"])
        external = description["members"][0]["external"]
        places = external["noise"]["residuals"]
        if what == "module":
            places[0][0] = "nowhere"
        elif what == "number":
            places[0][2] = 10**9
        elif what == "many":
            external["source"]["num_classes"] = 10**12
        elif what == "words":
            external["noise"]["noise"] = "loud"
        elif what == "missing":
            del external["noise"]
        else:
            external["source"] = [external["source"]]
        text = json.dumps(description)
        header = {**header, "model": text, "sha256": content_digest(tensors, text)}
        save_file(tensors, "other.safetensors", header)
        with pytest.raises(ValueError, match="does not describe a model we can build"):
            load_model("other.safetensors", trust_code=True)


class TestTrained:
    CONFIG = RunConfig(f"en2_{SOURCE}", "digits", RECIPE, limit=100)

    def test_as_ours_are(self, capsys):
        command = f"train --model {SOURCE} --members 2 --data digits --recipe fast --epsilon 0.1 "
        assert main((command + "--noise 0.2 --epochs 1 --limit 100 --out run").split()) == 0
        forget()
        run = Run.open("run")
        assert run.config.model == f"en2_{SOURCE}"
        with pytest.raises(ValueError, match="trust_code=True"):
            run.load("best")
        model = run.load("best", trust_code=True)
        assert {place.noise for place in noise_modules(model)} == {0.2}
        evaluate = "evaluate run --attacks fgsm --limit 20 --draws 2".split()
        forget()
        assert main(evaluate) == 2
        assert "--trust-code" in capsys.readouterr().err
        assert imported() == 0
        assert main([*evaluate, "--trust-code"]) == 0

    def test_bfloat16_that_nobody_asked_for_is_left_out_where_torch_is_wrong(self, monkeypatch):
        monkeypatch.setattr("enresnet.training.engine.fast_bfloat16", lambda _: True)
        config = RunConfig("own_networks:strided", "digits", RECIPE, limit=60)
        for out, model, precision in (("a", config.model, "32"), ("b", SOURCE, "bf16")):
            run = train(replace(config, model=model), out)
            assert run.config.precision == precision
        (row,) = Run.open("a").metrics()
        assert "precision is 32: in bf16 torch computes wrong gradients of" in row["note"]
        assert train(config, "a").finished  # the same call finds it
        with pytest.raises(ValueError, match="precision is bf16, and in bf16 torch computes"):
            train(replace(config, precision="bf16"), "c")
        assert not Path("c").exists()

    def test_a_teacher_that_names_code(self, capsys):
        assert train(RunConfig(SOURCE, "digits", RECIPE, limit=60), "teacher").finished
        words = "--data digits --recipe fast --objective rslad_one_step --teacher teacher --out run"
        command = f"train --model resnet8 {words} --epochs 1 --limit 60".split()
        forget()
        assert main(command) == 2
        assert "--trust-code" in capsys.readouterr().err
        assert imported() == 0
        assert not Path("run").exists()
        assert main([*command, "--trust-code"]) == 0
        assert imported() == 1

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (f"{SOURCE} --mean 0.5 0.5 --std 1 1", "mean must be one number, or one a channel"),
            (f"{SOURCE} --mean 0.5", "mean and std belong together"),
            (f"{SOURCE} --mean 0.5 --std 0", "std"),
            (SOURCE.replace("build", "plain") + " --members 2", "residual"),
        ],
    )
    def test_what_is_refused_leaves_nothing_behind(self, options, words, capsys):
        command = f"train --model {options} --data digits --recipe natural --epochs 1 --limit 60"
        before = sorted(Path().iterdir())
        assert main([*command.split(), "--out", "run"]) == 2
        assert words in capsys.readouterr().err
        Path("other").mkdir()
        assert main([*command.split(), "--out", "other"]) == 2
        assert not list(Path("other").iterdir())
        Path("other").rmdir()
        written = {path.name for path in set(Path().iterdir()) - set(before)}
        assert written <= {"imported", "__pycache__"}  # what importing the user's module writes

    def test_members_of_what_has_them(self, capsys):
        command = f"train --model en1_{SOURCE} --members 2 --data digits --out run"
        assert main(command.split()) == 2
        assert "says itself how many" in capsys.readouterr().err

    def test_stopped_and_resumed_it_is_the_same_to_the_bit(self):
        """Dropout draws too, from torch's own generator."""
        config = RunConfig(f"en2_{SOURCE}", "digits", load_recipe("fast", epochs=2), limit=100)
        whole = train(config, "whole")

        class StopError(Exception):
            pass

        class Stopper:
            def begin(self, *_):
                torch.manual_seed(99)  # what happened before must not matter

            def step(self, step):
                if (step.epoch, step.step) == (2, 1):
                    raise StopError

            def epoch(self, _):
                pass

            def end(self):
                pass

        with pytest.raises(StopError):
            train(config, "part", callbacks=[Stopper()], checkpoint_every=0)
        forget()
        with pytest.raises(ValueError, match="names code"):
            resume("part")
        assert imported() == 0
        resumed = resume("part", trust_code=True)
        for name in ("best", "last"):
            assert whole.weights(name).read_bytes() == resumed.weights(name).read_bytes()

    def test_lean_memory_gives_the_same_gradient(self):
        images, gradients = torch.rand(4, 3, 16, 16), []
        for lean in (False, True):
            model = create_model(f"en2_{SOURCE}", image_size=16, generator=seeded()).train()
            set_recompute(model, lean)
            torch.manual_seed(5)
            model(images).square().sum().backward()
            gradients.append({n: p.grad for n, p in model.named_parameters()})
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(gradient, gradients[1][name])

    def test_integrated(self):
        for seed in (0, 1):
            train(RunConfig(SOURCE, "digits", RECIPE, limit=60, seed=seed), f"run{seed}")
        forget()
        with pytest.raises(ValueError, match="trust_code"):
            integrate(["run0", "run1"], "both")
        both = integrate(["run0", "run1"], "both", trust_code=True)
        model = both.load("best", trust_code=True)
        parts = [Run.open(f"run{seed}").load("best", trust_code=True) for seed in (0, 1)]
        images = torch.rand(2, 1, 8, 8)
        torch.testing.assert_close(model(images), sum(part(images) for part in parts) / 2)


def test_a_copy_and_a_state_are_the_same_network():
    model = create_model(f"en2_{SOURCE}", generator=seeded()).eval()
    other = copy.deepcopy(model)
    assert describe(other) == describe(model)
    fresh = create_model(f"en2_{SOURCE}", generator=seeded(9)).eval()
    fresh.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 32, 32)
    for one in (model, other, fresh):
        set_noise(one, 0.0)
    assert torch.equal(model(images), other(images))
    assert torch.equal(model(images), fresh(images))
    assert isinstance(other.members[0].network, nn.Module)
