"""Models that want other images, or return probabilities, are noticed and told what to do."""

import json
import warnings

import pytest
import torch
from torch import nn

from enresnet.attacks import IFGSM
from enresnet.cli import main
from enresnet.data import load_data
from enresnet.evaluation import evaluate
from enresnet.evaluation.masking.diagnosis import diagnose
from enresnet.evaluation.misuse import suspicions
from enresnet.evaluation.model_identity import digest_of
from enresnet.models import Normalized, create_model
from problems import SmallNet, assert_same_state, random_problem, seeded, snapshot

MEAN, STD = 0.1307, 0.3081


def trained(images, labels):
    """Return a small network that is right on images like these, in their own range."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.2, generator=seeded(parameter.numel()))
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def data():
    return load_data("digits")


@pytest.fixture(scope="module")
def odd(data):
    """Return a network that needs its images normalised: it reads shifted ones quite otherwise."""
    images, labels = data.train.batch(slice(len(data.train)))
    shifted = torch.cat([(images - MEAN) / STD, images])
    others = torch.where(labels < 4, labels, (labels + 1) % 10)
    return trained(shifted, torch.cat([labels, others]))


def test_a_model_that_expects_normalised_images_is_noticed(odd, data):
    with pytest.warns(UserWarning, match=r"MNIST's mean and std.*Normalized\(model, mean=\(0.1307"):
        result = evaluate(odd, data.test)
    right = evaluate(Normalized(odd, MEAN, STD), data.test)  # which brings no warning
    assert right.natural.accuracy > result.natural.accuracy + 0.3
    checked = diagnose(odd, data.test, limit=40, draws=1, queries=2, epsilon=0.01)
    (check,) = [c for c in checked.warnings if c.name.startswith("the images are as the model")]
    assert "--mean 0.1307 --std 0.3081" in check.meaning


def test_probabilities_in_place_of_logits_are_noticed(data):
    images, labels = data.train.batch(slice(len(data.train)))
    net = nn.Sequential(trained(images, labels), nn.Softmax(dim=1))
    with pytest.warns(UserWarning, match=r"returns probabilities.*Return the logits.*\.log\(\)"):
        evaluate(net, data.test)
    checked = diagnose(net, data.test, limit=40, draws=1, queries=2, epsilon=0.01)
    assert "the model returns logits" in {check.name for check in checked.warnings}


def test_infinite_logits_are_noticed(data):
    images, labels = data.train.batch(slice(len(data.train)))
    net = trained(images, labels)
    with pytest.warns(UserWarning, match="model overflows: logits of .* of 128 images are inf"):
        evaluate(lambda x: net(x) * 1e38, data.test)


def test_good_models_are_left_in_peace(data, monkeypatch):
    images, labels = data.train.batch(slice(len(data.train)))
    net = trained(images, labels)
    for model in (net, lambda x: net(x).log_softmax(dim=1), nn.Sequential(net[:2], *net[2:])):
        assert suspicions(model, data.test) == []
    monkeypatch.setattr("enresnet.evaluation.misuse.drawn_logits", None)  # ours are not asked
    assert suspicions(create_model("en1_resnet8", in_channels=1), data.test) == []
    assert suspicions(net, data.test.first(10)) == []


class TestNormalized:
    def test_it_is_the_model_on_normalised_images(self):
        images, _ = random_problem()
        net = SmallNet().eval()
        mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
        expected = net(
            (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        )
        torch.testing.assert_close(Normalized(net, mean, std)(images), expected)
        torch.testing.assert_close(Normalized(net, torch.tensor(mean), std)(images), expected)
        half = Normalized(net, 0.5, 0.25)
        torch.testing.assert_close(half(images), net(4 * images - 2))
        assert half.double()(images.double()).dtype == torch.float64
        assert "mean=[0.5], std=[0.25]" in repr(half)
        other = Normalized(net, 0.4, 0.25)
        asked = {"shape": images.shape[1:], "dtype": torch.float64}
        assert digest_of(half, **asked) != digest_of(other, **asked)

    @pytest.mark.parametrize("called", [lambda net: net, lambda net: lambda x: net(x)])
    def test_attacks_stay_in_the_ball_and_leave_what_is_inside_alone(self, called):
        net, (images, labels) = SmallNet().train(), random_problem()
        before = snapshot(net)
        model = Normalized(called(net), 0.5, 0.25)
        found = IFGSM(epsilon=0.05)(model, images, labels)
        assert (found - images).abs().max() <= 0.05
        assert 0 <= found.min() <= found.max() <= 1
        assert_same_state(before, snapshot(net))

    @pytest.mark.parametrize(
        ("mean", "std", "words"),
        [
            (0.5, 0, "std must be"),
            ((), 1.0, "mean must be a number, or one a channel; found none"),
            ((0.5, 0.5), (1.0, 1.0, 1.0), "mean and std must hold one number a channel, found 2"),
        ],
    )
    def test_bad_numbers(self, mean, std, words):
        with pytest.raises(ValueError, match=words):
            Normalized(SmallNet(), mean, std)

    def test_other_images(self):
        with pytest.raises(ValueError, match="images must be N x 2 x H x W, as mean has 2"):
            Normalized(SmallNet(), (0.5, 0.5), 1.0)(torch.zeros(1, 3, 8, 8))
        with pytest.raises(TypeError, match="model must be an nn.Module or a callable"):
            Normalized("resnet18", 0.5, 0.5)


def test_the_commands(odd, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save(odd.state_dict(), "odd.pt")
    (tmp_path / "my_odd_model.py").write_text(
        "import torch\nfrom torch import nn\n"
        "layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)\n"
        "net = nn.Sequential(*layers).eval()\n"
        "net.load_state_dict(torch.load('odd.pt'))\n"
    )
    words = ["--data", "digits", "--limit", "100", "--json", "found.json"]
    norm = ["--mean", "0.1307", "--std", "0.3081"]

    def accuracy(*extra):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert main(["evaluate", "my_odd_model:net", *words, "--attacks", "fgsm", *extra]) == 0
        found = json.loads((tmp_path / "found.json").read_text())
        return found["natural"]["accuracy"], [str(w.message) for w in caught]

    plain, said = accuracy("--out", "plain")
    assert any("--mean 0.1307 --std 0.3081" in word for word in said)
    whole, said = accuracy(*norm, "--out", "whole")
    assert whole > plain + 0.3
    assert said == []
    matrix = ["transfer", "--matrix", "my_odd_model:net", *words, "--attacks", "fgsm", *norm]
    assert main(matrix) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["natural"]["my_odd_model.net"]["accuracy"] == whole
    few = ["--data", "digits", "--limit", "20", "--queries", "2", "--draws", "1"]
    assert main(["diagnose", "my_odd_model:net", *few, *norm]) in (0, 1)
    capsys.readouterr()
    assert main(["evaluate", "my_odd_model:net", *words, "--mean", "0.5"]) == 2
    assert "--mean and --std belong together" in capsys.readouterr().err
    assert main(["evaluate", "nowhere.safetensors", *words, *norm]) == 2
    assert "--mean and --std are for models of your own" in capsys.readouterr().err
