"""Attacks from several threads on one model take turns, and leave it as it was."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest
import torch
from torch import nn

from enresnet.attacks import IFGSM
from enresnet.evaluation import evaluate
from enresnet.evaluation.scoring import score
from enresnet.models import create_model
from enresnet.models.frozen import frozen
from problems import SmallNet, assert_same_state, random_problem, seeded, snapshot


def at_once(*tasks):
    """Run functions in threads of their own, all started together; return what they gave."""
    barrier = Barrier(len(tasks))

    def run(task):
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(run, task) for task in tasks]]


@pytest.mark.parametrize("called", [lambda net: net, lambda net: lambda x: net(x)])
def test_one_model_attacked_from_several_threads(called):
    """In training mode, whose statistics and dropout would show every call that was not frozen."""
    net, (images, labels) = SmallNet().train(), random_problem()
    model, attack = called(net), IFGSM(steps=10)
    before, expected = snapshot(net), attack(model, images, labels)

    def attacked():
        return [IFGSM(steps=10)(model, images, labels) for _ in range(8)]

    def scored():
        return [score(model, images, labels) for _ in range(30)]

    *found, _ = at_once(attacked, attacked, scored)
    assert_same_state(before, snapshot(net))
    for result in (*found[0], *found[1]):
        assert torch.equal(result, expected)


def test_a_member_waits_for_its_ensemble_and_strangers_do_not():
    member, stranger = SmallNet(), SmallNet(seed=1)
    whole = nn.Sequential(member)
    entered = Event()

    def enter(model):
        with frozen(model):
            entered.set()

    with frozen(whole), frozen(member):  # one thread may do so as often as it likes
        other = Thread(target=enter, args=[stranger])
        other.start()
        other.join(10)
        assert entered.is_set()
        entered.clear()
        waiting = Thread(target=enter, args=[member])
        waiting.start()
        assert not entered.wait(0.2)
    waiting.join(10)
    assert entered.is_set()


def test_threads_that_would_wait_for_each_other_are_told_so():
    one, two = SmallNet(), SmallNet(seed=1)
    images, labels = random_problem()
    met = Barrier(2)

    def model(first, second):
        calls = []

        def both(x):
            logits = first(x)
            if not calls:
                calls.append(met.wait())
            return logits + second(x)

        return both

    def attacked(first, second):
        try:
            IFGSM(steps=2)(model(first, second), images, labels)
        except RuntimeError as error:
            return str(error)
        return ""

    found = at_once(lambda: attacked(one, two), lambda: attacked(two, one))
    assert sorted(map(bool, found)) == [False, True]
    assert "attacked from two threads" in max(found)
    assert one.training
    assert two.training


@pytest.mark.parametrize("kind", ["ours", "dropout"])
def test_seeded_evaluations_from_two_threads_are_those_of_one(kind):
    """Noise of our own and torch's: each evaluation starts both anew for every batch."""
    images, labels = random_problem((48, 3, 16, 16))
    if kind == "ours":
        model = create_model("en1_resnet8", num_classes=4, generator=seeded()).eval()
    else:
        inner = create_model("resnet8", num_classes=4, generator=seeded()).eval()
        model = lambda x: nn.functional.dropout(inner(x), 0.5)  # noqa: E731

    def found():
        result = evaluate(model, (images, labels), [IFGSM(steps=2)], seed=1, draws=3, batch_size=4)
        return [value.scored.right for value in (result.natural, *result.robust.values())]

    state = torch.get_rng_state()
    alone = found()
    for result in at_once(found, found, found):
        for one, two in zip(result, alone, strict=True):
            assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), state)
