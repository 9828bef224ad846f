"""The engine: exact resume, processes, precision."""

import json
import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import torch

from enresnet.common.precision import PRECISIONS, TRAINING_PRECISIONS
from enresnet.data import DataSet, Images, load_data
from enresnet.models import create_model
from enresnet.training import Engine, Run, RunConfig, Trainer, load_recipe
from enresnet.training.batches import step_rows
from enresnet.training.engine import LostProcessError
from enresnet.training.state import TrainerState
from problems import seeded
from processes import LINE, finish, kill, newest, start, wait_for
from trainings import QUICK, TRAIN, assert_same_weights


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=300)


RECIPES = {
    "pgd": QUICK,
    "ema and one cycle": replace(QUICK, ema=0.9, schedule="one_cycle", objective="trades"),
    "guard": replace(QUICK, objective="fgsm_rs", epochs=3, reset_momentum=True),
    "learned weights, awp": replace(QUICK, weight_step=0.1, awp=True, memory="lean"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_trainer_put_back_goes_on_bit_for_bit(name, digits):
    """Stop at every kind of place: within the first epoch, in the last, between epochs."""
    recipe = RECIPES[name]
    model = "en1_resnet8+resnet8" if recipe.weight_step else "en2_resnet8"
    kind = RunConfig(model=model, data="digits", recipe=recipe)
    whole = Trainer(kind.create_model(digits), digits, recipe)
    states = {}

    def remember(_):
        tensors = {name: tensor.clone() for name, tensor in whole.state.tensors().items()}
        facts = json.loads(json.dumps(whole.state.facts()))
        states[whole.steps_done] = TrainerState.unpack(tensors, facts)

    epochs = list(whole.epochs(remember))
    for step in (3, whole.steps, whole.steps + 1, whole.steps * recipe.epochs):
        again = Trainer(kind.create_model(digits), digits, recipe)
        again.restore(states[step])
        rest = list(again.epochs())
        for before, after in zip(epochs[-len(rest) :], rest, strict=True):
            assert replace(before, seconds=0, images_per_second=0) == replace(
                after, seconds=0, images_per_second=0
            )
        torch.testing.assert_close(again.state.tensors(), whole.state.tensors(), rtol=0, atol=0)
        torch.testing.assert_close(
            again.result.state_dict(), whole.result.state_dict(), rtol=0, atol=0
        )


def test_a_collapse_is_remembered(digits):
    recipe = RECIPES["guard"]
    trainer = Trainer(create_model("resnet8", in_channels=1), digits, recipe)
    trainer._go_on_with_pgd()
    again = Trainer(create_model("resnet8", in_channels=1), digits, recipe)
    again.restore(trainer.state)
    assert again.objective.recipe.objective == "pgd"
    assert again.objective.recipe.steps == 2


def wait_for_progress(process, run):
    """Wait until a training writes a checkpoint, or ends."""
    before = newest(run)
    wait_for(lambda: newest(run) not in (None, before) or process.poll() is not None)


def campaign(tmp_path, *, kills, epochs, every, log=None):
    """Kill a real training at random moments; return every resumed run's lines."""
    words = [*TRAIN.split(), "--epochs", epochs, "--checkpoint-every", every]
    finish(*words, "--out", tmp_path / "whole")
    run, moments, lines, killed = tmp_path / "killed", random.Random(0), [], None
    while True:
        process = start(*words, "--out", run)
        if len(lines) < kills:
            wait_for_progress(process, run)
            time.sleep(moments.uniform(0, 3 * every))
        else:
            process.wait(timeout=300)
        ended = process.poll() is not None
        out, err = process.communicate() if ended else kill(process)
        found = LINE.search(out)
        if killed is not None:
            assert found, (out, err)
            step, saved = int(found[1]), datetime.fromisoformat(found[2])
            assert step > 0
            assert killed - saved < timedelta(seconds=every + 5)
            lines.append(f"killed {killed:%H:%M:%S.%f}, {found[0]}")
        killed = datetime.now(UTC)
        if ended:
            break
    if log is not None:
        log.write_text("\n".join(lines) + "\n")
    assert len(lines) >= kills, "the training was over before the kills were"
    assert_same_weights(run, tmp_path / "whole")
    rows, expected = Run.open(run).metrics(), Run.open(tmp_path / "whole").metrics()
    timing = ("seconds", "images_per_second")
    assert [{k: v for k, v in row.items() if k not in timing} for row in rows] == [
        {k: v for k, v in row.items() if k not in timing} for row in expected
    ]
    return lines


def test_kill_and_go_on(tmp_path):
    campaign(tmp_path, kills=2, epochs=6, every=0.2)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    lines = campaign(tmp_path, kills=20, epochs=60, every=0.3, log=tmp_path / "kills.log")
    print("\n".join(lines))


def test_every_image_once_an_epoch_whatever_the_number_of_processes():
    for count, size, processes in ((10, 4, 1), (100, 32, 3), (97, 32, 4), (5, 2, 2), (7, 8, 7)):
        seen = []
        for rows in step_rows(count, size * processes, processes):
            here = list(range(count))[rows]
            for rank in range(processes):
                engine = SimpleNamespace(processes=processes, rank=rank)
                own = here[Engine.share_of(engine, len(here))]
                assert own
                seen += own
        assert seen == list(range(count))


def test_reduced_precision_trains_to_the_same():
    data = load_data("digits")
    recipe = load_recipe("fast", epochs=4, epsilon=0.1, batch_size=64)
    accuracies = {}
    for precision in ("32", "bf16"):
        model = create_model("en1_resnet8", in_channels=1, generator=seeded())
        engine = Engine(accelerator="cpu", precision=precision)
        *_, last = Trainer(model, data, recipe, engine=engine).epochs()
        accuracies[precision] = last.validation_natural
        assert next(model.parameters()).dtype == torch.float32
    assert min(accuracies.values()) > 0.8
    assert abs(accuracies["32"] - accuracies["bf16"]) < 0.1


def test_attacks_and_trainings_have_one_vocabulary_of_precision():
    assert set(PRECISIONS) < set(TRAINING_PRECISIONS)
    for name, earlier in (("32", "32"), ("bf16", "bf16-mixed")):
        engine = Engine(accelerator="cpu", precision=earlier)
        assert engine.precision == name
        assert RunConfig("resnet8", "digits", QUICK, precision=earlier).precision == name
    with pytest.raises(ValueError, match="precision must be one of 16, 32, auto, bf16; found 'x'"):
        Engine(precision="x")


def test_more_processes_than_images_are_refused(digits):
    few = Images(digits.train.pixels[:3], digits.train.labels[:3], digits.classes, 16)
    data = DataSet.of(few, few)
    engine = Engine(accelerator="cpu")
    engine.processes = 3
    with pytest.raises(ValueError, match="3 processes for 2 images"):
        Trainer(create_model("resnet8", in_channels=1), data, QUICK, engine=engine)


def test_another_number_of_processes_is_refused(digits):
    trainer = Trainer(create_model("resnet8", in_channels=1), digits, QUICK)
    state = replace(trainer.state, processes=2)
    with pytest.raises(ValueError, match="trained by 2 processes and cannot go on with 1"):
        trainer.restore(state)


@pytest.mark.parametrize("meeting", ["barrier", "all_reduce"])
def test_a_process_that_ended_is_told_in_a_sentence(monkeypatch, meeting):
    """Seen in an evaluation on two devices, one of them killed: a traceback of gloo."""
    engine = Engine(accelerator="cpu")

    def broken(*_, **__):
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:28380")

    monkeypatch.setattr(engine, "processes", 2)
    monkeypatch.setattr(engine._fabric, meeting, broken)
    with pytest.raises(LostProcessError, match="another process that shares the work ended, so"):
        engine.wait() if meeting == "barrier" else engine.sum_over_processes(torch.ones(1))
    monkeypatch.setattr(engine, "processes", 1)
    monkeypatch.setattr(engine._fabric, "barrier", broken)
    with pytest.raises(RuntimeError, match="Connection closed"):  # alone, it means something else
        engine.wait()
