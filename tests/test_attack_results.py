"""A call of an attack returns all it found, leaves nothing behind, and may have its own seed."""

import copy

import pytest
import torch

from enresnet.attacks import PGD, AttackResult, Square, Strongest, list_attacks
from enresnet.attacks.registry import create_attack
from enresnet.evaluation import evaluate
from problems import SmallNet, random_problem, seeded

IMAGES, LABELS = random_problem((4, 3, 8, 8))


def state_of(attack):
    """Return an attack's attributes, its generator as where it stands."""
    values = dict(vars(attack))
    values["generator"] = values["generator"].get_state().tolist()
    return copy.deepcopy(values)


@pytest.mark.parametrize("name", [n for n in list_attacks() if not n.startswith("autoattack")])
def test_nothing_is_left_on_the_attack(name):
    attack = create_attack(name, **({"budget": 100} if name == "strongest" else {}))
    if attack.goal == "targeted":
        pytest.skip("takes targets")
    before = state_of(attack)
    result = attack.run(SmallNet(), IMAGES, LABELS, seed=0)
    assert isinstance(result, AttackResult)
    assert result.images.shape == IMAGES.shape
    assert result.evaluations >= result.gradients >= 0
    assert result.claimed is None
    assert state_of(attack) == before


@pytest.mark.parametrize("make", [PGD, Square, Strongest])
def test_a_seed_fixes_a_call_and_leaves_the_generator(make):
    options = {"budget": 100} if make is Strongest else {"steps": 3}
    generator = seeded(5)
    attack, net = make(epsilon=0.1, generator=generator, **options), SmallNet()
    one, two = (attack(net, IMAGES, LABELS, seed=7) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(generator.get_state(), seeded(5).get_state())
    # A seed gives what a fresh generator of that seed gives.
    assert torch.equal(one, make(epsilon=0.1, generator=seeded(7), **options)(net, IMAGES, LABELS))
    attack(net, IMAGES, LABELS)
    assert not torch.equal(generator.get_state(), seeded(5).get_state())  # now it goes on


def test_an_evaluation_does_not_touch_the_generator():
    generator = seeded(5)
    generator.manual_seed(11)
    torch.rand(3, generator=generator)
    before = generator.get_state()
    attack = PGD(epsilon=0.1, steps=2, generator=generator)
    results = [evaluate(SmallNet(), (IMAGES, LABELS), [attack], seed=1) for _ in range(2)]
    assert torch.equal(generator.get_state(), before)
    assert results[0].to_json()["robust"].keys() == results[1].to_json()["robust"].keys()
    one, two = (next(iter(r.robust.values())).accuracy for r in results)
    assert one == two


def test_progress_moves_while_some_images_are_left_alone():
    """Passes on the images that are left count for the whole batch."""
    net, told = SmallNet(), []
    labels = LABELS.clone()
    with torch.no_grad():
        labels[:2] = (net(IMAGES[:2]).argmax(dim=1) + 1) % 4  # fooled from the start
    attack = PGD(epsilon=1e-4, steps=5, restarts=3, eot=1, generator=seeded())
    attack(lambda x: net(x), IMAGES, labels, advance=told.append)
    assert sum(told) == attack.passes * len(IMAGES)
    assert max(told) <= len(IMAGES)
