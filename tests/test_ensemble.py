"""Ensembles: how outputs are averaged; and their names."""

import functools

import pytest
import torch
from torch import nn

from enresnet.models import (
    Ensemble,
    Normalized,
    ResNet,
    canonical_name,
    count_parameters,
    create_model,
    list_models,
    paper_name,
    without_noise,
)
from enresnet.models.registry import name_of
from problems import SmallNet, seeded

IMAGES = torch.rand(4, 3, 8, 8, generator=seeded())


def members(count=3):
    return [SmallNet(seed=seed).eval() for seed in range(count)]


def test_logits_are_averaged():
    nets = members()
    expected = torch.stack([net(IMAGES) for net in nets]).mean(dim=0)
    torch.testing.assert_close(Ensemble(nets)(IMAGES), expected)


def test_weights_are_normalised():
    nets = members(2)
    expected = 0.75 * nets[0](IMAGES) + 0.25 * nets[1](IMAGES)
    model = Ensemble(nets, weights=[3, 1])
    torch.testing.assert_close(model(IMAGES), expected)
    model.set_weights([0, 5])
    torch.testing.assert_close(model(IMAGES), nets[1](IMAGES))
    assert model.weights.tolist() == [0, 1]


def test_probabilities_are_averaged_and_returned_as_logarithms():
    nets = members()
    expected = torch.stack([net(IMAGES).softmax(dim=1) for net in nets]).mean(dim=0)
    output = Ensemble(nets, average="probabilities")(IMAGES)
    torch.testing.assert_close(output.exp(), expected)
    torch.testing.assert_close(output.softmax(dim=1), expected)
    one_only = Ensemble(nets, average="probabilities", weights=[1, 0, 0])
    torch.testing.assert_close(one_only(IMAGES), nets[0](IMAGES).log_softmax(dim=1))
    images = IMAGES.clone().requires_grad_()
    one_only(images).sum().backward()
    assert images.grad.isfinite().all()


@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_draws_are_averaged_inside_one_prediction(average):
    model = create_model("en1_resnet8", average=average, generator=seeded()).eval()
    model(IMAGES)

    def spread(draws):
        model.draws = draws
        with torch.no_grad():
            return torch.stack([model(IMAGES) for _ in range(60)]).var(dim=0).mean().item()

    assert spread(9) == pytest.approx(spread(1) / 9, rel=0.4)


def test_draws_equal_the_mean_of_predictions():
    model = create_model("en2_resnet8", draws=3, generator=seeded()).eval()
    model.members[0].stages[0][0].noise.stream.source.manual_seed(5)
    averaged = model(IMAGES)
    model.draws = 1
    model.members[0].stages[0][0].noise.stream.source.manual_seed(5)
    torch.testing.assert_close(averaged, torch.stack([model(IMAGES) for _ in range(3)]).mean(dim=0))


def test_parts_weigh_equally_whatever_their_members():
    model = create_model("en2_resnet8+en1_wrn10_1", generator=seeded()).eval()
    with without_noise(model):
        first = torch.stack([net(IMAGES) for net in model.members[0].members]).mean(dim=0)
        second = model.members[1].members[0](IMAGES)
        torch.testing.assert_close(model(IMAGES), (first + second) / 2)


def test_parts_average_as_the_whole_does():
    model = create_model("en2_resnet8+en1_resnet8", noise=0, average="probabilities").eval()
    parts = [torch.stack([net(IMAGES) for net in part.members]) for part in model.members]
    expected = torch.stack([part.softmax(dim=2).mean(dim=0) for part in parts]).mean(dim=0)
    torch.testing.assert_close(model(IMAGES).exp(), expected)


def test_weights_sum_to_one_in_any_type():
    model = create_model("en3_resnet8", noise=0).eval().bfloat16().float()
    expected = torch.stack([net(IMAGES) for net in model.members]).mean(dim=0)
    torch.testing.assert_close(model(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_a_plain_ensemble_has_no_noise():
    model = create_model("en2_resnet8", noise=0).eval()
    assert torch.equal(model(IMAGES), model(IMAGES))
    assert len(model.members) == 2
    assert not torch.equal(*(net.stem.weight for net in model.members))


def test_a_plain_name_is_a_network_without_noise():
    model = create_model("resnet8").eval()
    assert torch.equal(model(IMAGES), model(IMAGES))
    mixed = create_model("resnet8+en1_resnet8", generator=seeded())
    assert [net.config["noise"] for net in (mixed.members[0].members[0],)] == [0]
    assert mixed.members[1].members[0].config["noise"] == 0.1


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("en5_resnet20", "en5_resnet20"),
        ("En5ResNet20", "en5_resnet20"),
        ("En_5ResNet20", "en5_resnet20"),
        ("En$_5$ResNet20", "en5_resnet20"),
        ("En$_{12}$ResNet20", "en12_resnet20"),
        ("ResNet110", "resnet110"),
        ("WRN-14-2", "wrn14_2"),
        ("WideResNet34-10", "wrn34_10"),
        ("En1WideResNet34-10", "en1_wrn34_10"),
        ("En2ResNet110&En1WideResNet34-10", "en2_resnet110+en1_wrn34_10"),
        (" en1_resnet20 + en1_resnet32 ", "en1_resnet20+en1_resnet32"),
        ("resnet29", "resnet29_bottleneck"),
        ("en3_resnet164_bottleneck", "en3_resnet164_bottleneck"),
    ],
)
def test_spellings(spelling, name):
    assert canonical_name(spelling) == name


OTHERS = [
    *("resnet8", "resnet29", "resnet11", "resnet20_bottleneck", "en3_resnet38_bottleneck"),
    *("wrn10_1", "wrn16_4", "en2_wrn14_2", "resnet8+wrn10_2", "en2_resnet8+en3_resnet29+wrn14_1"),
]


@pytest.mark.parametrize("name", [*list_models(), *OTHERS])
def test_parameters_are_counted_without_building_the_network(name):
    built = sum(parameter.numel() for parameter in create_model(name).parameters())
    assert count_parameters(name) == built


def test_classes_and_channels_count():
    model = create_model("en2_resnet11", num_classes=7, in_channels=1)
    built = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters("en2_resnet11", num_classes=7, in_channels=1) == built


@pytest.mark.parametrize(
    "name",
    [
        "resnet8",
        "resnet11_bottleneck",
        "wrn14_2",
        "wrn10_3",
        "en1_resnet8",
        "en2_resnet8+en1_wrn10_2",
    ],
)
def test_a_network_knows_its_name(name):
    assert name_of(create_model(name)) == name
    assert name_of(create_model(name).forward) == name


def test_other_models_are_called_after_their_class_or_function():
    def mine(images):
        return images

    small = SmallNet()
    assert name_of(small) == name_of(Normalized(small, 0.5, 0.5)) == "SmallNet"
    assert name_of(mine) == name_of(functools.partial(mine)) == "mine"
    assert name_of(Ensemble([small])) == "Ensemble"
    assert name_of(ResNet(blocks=1, widths=(8, 9, 10))) == "ResNet"
    assert name_of(ResNet.of_depth(8, noise=0.1)) == "en1_resnet8"


def test_every_listed_name_comes_back_from_the_papers_spelling():
    for name in list_models():
        assert canonical_name(name) == name
        assert canonical_name(paper_name(name)) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnt20", "unknown model 'resnt20'.*Did you mean resnet20"),
        ("en5_resnet21", r"6n\+2.*found 21; the nearest are 20 and 26"),
        ("en5-resnet", "unknown model.*Did you mean"),
        ("en0_resnet20", "number of members must be at least 1"),
        ("wrn34-0", "width must be at least 1"),
        ("wrn34_11_2", "unknown model"),
        ("en2_resnet20+", "unknown model ''"),
        ("en2_resnet20+vgg16", r"unknown model 'vgg16' in 'en2_resnet20\+vgg16'"),
        ("resnet２０", "unknown model"),
        ("res{net}20", "unknown model"),
        ("resnet18", "found 18; the nearest are 14 and 20"),
        ("wrn20_2", r"6n\+4, or 14"),
    ],
)
def test_unknown_names(name, words):
    with pytest.raises(ValueError, match=words):
        create_model(name)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: Ensemble([]), TypeError, "members must be one or more"),
        (lambda: Ensemble([1]), TypeError, "members must be one or more"),
        (lambda: Ensemble(members(2), weights=[1]), ValueError, "weights must hold 2 numbers"),
        (lambda: Ensemble(members(2), weights=[0, 0]), ValueError, "sum above 0"),
        (lambda: Ensemble(members(2), weights=[1, -1]), ValueError, "weights must be"),
        (lambda: Ensemble(members(2), draws=0), ValueError, "draws must be at least 1"),
        (lambda: Ensemble(members(2), average="votes"), ValueError, "average must be one of"),
        (lambda: create_model("resnet8", noise=0.1), ValueError, "contradicts.*en1_resnet8"),
        (lambda: create_model("resnet8", draws=2), ValueError, "belong to ensembles.*en1_resnet8"),
        (lambda: create_model("en1_resnet8", noise=-1), ValueError, "noise must be"),
        (lambda: create_model(20), TypeError, "name must be a string"),
        (lambda: create_model("resnet8", generator=1), TypeError, "generator must be"),
    ],
)
def test_bad_input(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_any_module_can_be_a_member():
    model = Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), ResNet.of_depth(8)])
    assert model(IMAGES).shape == (4, 10)
    assert "weights=[0.5, 0.5]" in repr(model)
