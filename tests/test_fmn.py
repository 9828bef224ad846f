"""The fast minimum-norm attack: known smallest norms, honest successes, other implementations."""

import pytest
import torch

from enresnet.attacks import FMN, IFGSM, attack_at, create_attack
from enresnet.data import load_data
from enresnet.evaluation import score
from enresnet.models import load_model
from problems import Linear, Noisy, SmallNet, random_problem, seeded

NORMS = ("linf", "l2")


def sizes(attacked, images, norm):
    change = (attacked.double() - images.double()).flatten(1)
    return change.abs().amax(dim=1) if norm == "linf" else change.norm(dim=1)


def inner_problem(features, count=40, classes=2):
    """Images far from black and white, so that [0, 1] cuts no ball, with the model's own labels."""
    model = Linear(features, classes=classes)
    images = 0.5 + 0.05 * torch.randn(count, features, generator=seeded())
    return model, images, model(images).argmax(dim=1)


def known_norms(model, images, labels, norm):
    """Return the margin over the dual norm of its gradient, for the nearest of the classes."""
    logits, weight = model(images).detach().double(), model.weight.detach().double()
    found = torch.full((len(images),), torch.inf, dtype=torch.float64)
    for other in range(len(weight)):
        slope = weight[labels] - weight[other]
        dual = slope.abs().sum(dim=1) if norm == "linf" else slope.norm(dim=1)
        distance = (logits.gather(1, labels[:, None])[:, 0] - logits[:, other]) / dual
        found = torch.where(labels == other, found, found.minimum(distance))
    return found


@pytest.fixture(scope="module")
def digits():
    model = load_model("resnet8@digits").eval()
    images, labels = load_data("digits").test.batch(slice(0, 60))
    return model, images, labels


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 5])
def test_it_reaches_the_smallest_norm_of_a_linear_model(norm, classes):
    model, images, labels = inner_problem(50, classes=classes)
    found = sizes(FMN(norm=norm)(model, images, labels), images, norm)
    least = known_norms(model, images, labels, norm)
    assert (found >= least * (1 - 1e-4)).all()
    assert (found / least).median() < 1.01
    assert (found / least).max() < 1.05


@pytest.mark.parametrize("norm", NORMS)
def test_what_it_finds_is_adversarial_and_inside_the_box(norm, digits):
    model, images, labels = digits
    attacked = FMN(norm=norm, steps=50)(model, images, labels)
    assert 0 <= attacked.min() <= attacked.max() <= 1
    assert (model(attacked).argmax(dim=1) != labels).all()
    wrong = model(images).argmax(dim=1) != labels
    assert torch.equal(attacked[wrong], images[wrong])


@pytest.mark.parametrize("norm", NORMS)
def test_half_as_much_is_not_adversarial(norm, digits):
    """The perturbation is small, also beside others along the same line."""
    model, images, labels = digits
    attacked = FMN(norm=norm)(model, images, labels)
    shorter = images + 0.9 * (attacked - images)
    right = model(images).argmax(dim=1) == labels
    assert (model(shorter).argmax(dim=1) == labels)[right].double().mean() > 0.9


@pytest.mark.parametrize("norm", NORMS)
def test_more_steps_do_not_hurt(norm, digits):
    model, images, labels = digits
    found = [
        sizes(FMN(norm=norm, steps=steps)(model, images, labels), images, norm).median().item()
        for steps in (5, 20, 80)
    ]
    assert found[0] >= found[1] >= found[2]


@pytest.mark.parametrize("norm", NORMS)
def test_it_finds_what_foolbox_finds_or_less(norm, digits):
    foolbox = pytest.importorskip("foolbox")
    model, images, labels = digits
    kind = {"linf": foolbox.attacks.LInfFMNAttack, "l2": foolbox.attacks.L2FMNAttack}[norm]
    theirs = kind(steps=100).run(
        foolbox.PyTorchModel(model, bounds=(0, 1)), images, foolbox.Misclassification(labels)
    )
    ours = FMN(norm=norm, steps=100)(model, images, labels)
    median = [sizes(found.detach(), images, norm).median().item() for found in (ours, theirs)]
    assert median[0] <= 1.02 * median[1]


@pytest.mark.parametrize("norm", NORMS)
def test_no_ball_in_which_ifgsm_succeeds_is_much_smaller(norm, digits):
    model, images, labels = digits
    found = sizes(FMN(norm=norm)(model, images, labels), images, norm)
    radius = found.quantile(0.5).item()
    attacked = IFGSM(epsilon=0.9 * radius, steps=50, norm=norm)(model, images, labels)
    lost = model(attacked).argmax(dim=1) != labels
    assert lost.double().mean() <= (found <= radius).double().mean() + 0.05


@pytest.mark.parametrize("norm", NORMS)
def test_a_largest_norm_holds_and_costs_no_success(norm, digits):
    model, images, labels = digits
    free = sizes(FMN(norm=norm)(model, images, labels), images, norm)
    bound = 1.001 * free.median().item()
    attacked = FMN(norm=norm, max_epsilon=bound)(model, images, labels)
    assert sizes(attacked, images, norm).max() <= bound
    lost = model(attacked).argmax(dim=1) != labels
    assert lost.double().mean() >= 0.5
    margins = [  # what could not be fooled is nearer to it
        model(x).gather(1, labels[:, None])[:, 0] - model(x).topk(2).values[:, 1]
        for x in (images, attacked)
    ]
    assert (margins[1] < margins[0])[~lost].all()


def test_a_bound_of_nothing_returns_the_images():
    images, labels = random_problem()
    for norm in NORMS:
        assert torch.equal(FMN(max_epsilon=0.0, norm=norm)(SmallNet(), images, labels), images)


def test_a_model_without_a_slope_leaves_the_search_in_the_box():
    images, labels = random_problem((4, 6), classes=2)
    attacked = FMN(steps=5)(lambda x: 0 * x[:, :2] + torch.tensor([1.0, 0.0]), images, 0 * labels)
    assert torch.equal(attacked, images)


@pytest.mark.parametrize("norm", NORMS)
def test_targeted(norm, digits):
    model, images, labels = digits
    targets = (labels + 3) % 10
    attack = FMN(norm=norm, goal="targeted", steps=60)
    attacked = attack(model, images, labels, targets=targets)
    assert (model(attacked).argmax(dim=1) == targets).double().mean() > 0.95
    any_class = FMN(norm=norm, steps=60)(model, images, labels)
    far, near = (sizes(found, images, norm).median() for found in (attacked, any_class))
    assert near < far


@pytest.mark.parametrize("norm", NORMS)
def test_of_all_targets_the_nearest_counts(norm):
    model, images, labels = inner_problem(30, count=20, classes=4)
    attack = FMN(norm=norm, goal="targeted", targets="all", steps=60)
    found = sizes(attack(model, images, labels), images, norm)
    least = known_norms(model, images, labels, norm)
    assert (found / least).max() < 1.05


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("eot", [1, 5])
def test_a_randomised_model_is_not_fooled_by_luck(norm, eot):
    """In one draw a point far from the boundary may be wrong; most draws know better."""
    torch.manual_seed(0)
    plain, images, labels = inner_problem(50, count=60)
    model = Noisy(50)
    least = known_norms(plain, images, labels, norm)
    attacked = FMN(norm=norm, eot=eot)(model, images, labels)
    found = sizes(attacked, images, norm)
    right = score(model, attacked, labels, draws=400)
    assert right.mean() < 0.56  # 0.5 on the boundary itself
    assert (found / least).median() > 0.8
    assert (found / least).median() < 1.3


def test_reduced_gradients_are_judged_in_float32(digits):
    model, images, labels = digits
    attacked = FMN(steps=30, precision="bf16")(model, images, labels)
    assert (model(attacked).argmax(dim=1) != labels).all()


def test_it_repeats_and_needs_no_seed(digits):
    model, images, labels = digits
    one, two = (FMN(steps=5)(model, images[:8], labels[:8]) for _ in range(2))
    assert torch.equal(one, two)


def test_names():
    assert create_attack("fmn30_l2_targeted_random").name == "fmn30_l2_targeted_random"
    assert create_attack("fmn").name == "fmn100"
    assert attack_at("fmn50", 0.1, seed=0).name == "fmn50"
