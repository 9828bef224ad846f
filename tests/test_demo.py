"""The demo: what one request computes, bad uploads, the refusal without gradio, the page itself."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from enresnet.cli import main
from enresnet.cli.demo import has_display
from enresnet.data.registry import is_local
from enresnet.demo import (
    Answer,
    DemoResult,
    DemoSettings,
    Side,
    attack_pair,
    list_pairs,
    pair_of_runs,
    read_upload,
    what_happened,
)
from enresnet.demo import page as page_module
from enresnet.demo.experiment import ATTACKS
from enresnet.demo.view import error_html, magnification, magnified, preview_html, result_html
from enresnet.demo.wording import how_attacked
from enresnet.models import list_pretrained

ROOT = Path(__file__).parent.parent
DIGIT = (1, 8, 8)


@pytest.fixture(scope="module")
def pair():
    return list_pairs()[0]


@pytest.fixture(scope="module")
def digit(pair):
    images, labels = pair.test_images().batch(slice(3, 4))
    return images[0], int(labels)


@pytest.fixture(scope="module")
def result(pair, digit):
    return attack_pair(pair, *digit, DemoSettings(attack="pgd", epsilon=51, steps=5, eot=2))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return the folders of two runs on a folder of small pictures in colour."""
    monkeypatch.setenv("ENRESNET_DATA", str(tmp_path / "cache"))
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog", "owl")):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for shade in range(6):
                colour = tuple(40 * shade if place == number else 20 for place in range(3))
                image = Image.new("RGB", (12, 12), colour)
                image.save(tmp_path / "images" / part / name / f"{shade}.png")
    folders = [tmp_path / "base", tmp_path / "ensemble"]
    for folder, model in zip(folders, ("resnet8", "en2_resnet8"), strict=True):
        words = f"train --model {model} --data {tmp_path / 'images'} --size 12 --epochs 1"
        assert main([*words.split(), "--batch-size", "6", "--out", str(folder)]) == 0
    return folders


class TestPairs:
    def test_the_networks_in_the_box(self, pair):
        assert pair.name == "resnet8 and en3_resnet8 (digits)"
        assert (pair.epsilon, pair.image_shape) == (51, DIGIT)
        assert pair.has_test_images()

    def test_further_weights_appear_by_themselves(self):
        digits = [card for card in list_pretrained() if card.data == "digits"]
        plain = next(card for card in digits if card.name == "resnet8@digits")
        noisy = next(card for card in digits if card.name == "en3_resnet8@digits")
        cifar = {"data": "cifar10", "image_shape": (3, 32, 32)}
        more = [
            replace(plain, name="resnet20@cifar10-fast", **cifar),
            replace(plain, name="resnet32@cifar10-fast", **cifar),
            replace(noisy, name="en2_resnet20@cifar10-fast", **cifar),
            replace(noisy, name="en1_resnet20+en1_resnet32@cifar10-fast", **cifar),
            replace(noisy, name="en5_resnet20@cifar10-long", **cifar),
            replace(noisy, name="en5_resnet20@cifar100-fast", data="cifar100"),
        ]
        assert [pair.name for pair in list_pairs([*digits, *more])] == [
            "resnet8 and en3_resnet8 (digits)",
            "resnet20 and en2_resnet20 (cifar10-fast)",
            "resnet20 and en1_resnet20+en1_resnet32 (cifar10-fast)",
            "resnet32 and en1_resnet20+en1_resnet32 (cifar10-fast)",
            "resnet20@cifar10-fast and en5_resnet20@cifar10-long",
        ]

    def test_two_runs_make_a_pair_on_their_own_images(self, runs):
        base, ensemble = runs
        for named in (runs, runs[::-1]):  # in either order
            pair = pair_of_runs(*named)
            assert pair.base.name == f"resnet8@{base}"
            assert pair.ensemble.name == f"en2_resnet8@{ensemble}"
            assert pair.name == "resnet8 and en2_resnet8 (runs on images)"
            assert (pair.image_shape, len(pair.classes)) == ((3, 12, 12), 3)
            assert pair.classes == ("cat", "dog", "owl")
        images, labels = pair.test_images().batch(slice(1))
        found = attack_pair(
            pair, images[0], int(labels), DemoSettings(attack="fgsm", epsilon=pair.epsilon, draws=3)
        )
        assert (found.base.before.draws, found.ensemble.before.draws) == (1, 3)
        assert "proves nothing" not in result_html(found)  # neither was evaluated
        assert main(["evaluate", str(base), "--attacks", "fgsm", "--limit", "2"]) == 0
        evaluated = replace(found, pair=pair_of_runs(*runs))
        shown = result_html(evaluated)
        assert "One image proves nothing: accuracy over 2 test images" in shown
        assert "not measured" in shown  # the other was not
        preview = page_module._chosen(pair, 0, None, False)[2]
        known = f"True class: {pair.classes[int(labels)]}"
        assert preview == [f"Test image 0 of {pair.ensemble.data}", known]

    def test_runs_that_make_no_pair_get_a_sentence(self, tmp_path, runs):
        base, ensemble = runs
        with pytest.raises(ValueError, match="found two without noise: resnet8@.* and resnet8@"):
            pair_of_runs(base, base)
        with pytest.raises(ValueError, match="found two with noise: en2_resnet8@"):
            pair_of_runs(ensemble, ensemble)
        with pytest.raises(FileNotFoundError, match="no such run|not a run|config.yaml"):
            pair_of_runs(base, tmp_path / "none")
        digits = tmp_path / "digits"
        words = f"train --model en2_resnet8 --data digits --epochs 1 --limit 40 --out {digits}"
        assert main(words.split()) == 0
        with pytest.raises(ValueError, match="two runs on the same images, found .* with data"):
            pair_of_runs(base, digits)
        for run in runs:
            text = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub("(?m)^data: .*$", "data: cifar10", text))
        with pytest.raises(ValueError, match="cifar10 is not on this machine: run enresnet data"):
            pair_of_runs(*runs)

    def test_nothing_is_downloaded(self, pair, tmp_path, monkeypatch):
        monkeypatch.setenv("ENRESNET_DATA", str(tmp_path))
        assert is_local("digits")
        assert is_local(str(tmp_path))
        assert not is_local("cifar10")
        away = replace(pair, ensemble=replace(pair.ensemble, data="cifar10"))
        with pytest.raises(ValueError, match="run enresnet data cifar10, or upload"):
            away.test_images()
        (tmp_path / "cifar10.safetensors").touch()
        assert is_local("cifar10")


class TestExperiment:
    def test_what_it_finds(self, result, digit):
        image, label = digit
        assert result.label == label
        assert torch.equal(result.image, image)
        for side, draws in ((result.base, 1), (result.ensemble, 100)):
            for answer in (side.before, side.after):
                assert answer.draws == draws
                assert sum(answer.probabilities) == pytest.approx(1)
            assert side.before.top == label
            assert 0 < side.largest_change <= 51.001
            assert (side.attacked - image).abs().max() <= 0.2 + 1e-6
            assert side.attacked.min() >= 0
            assert side.attacked.max() <= 1

    def test_one_seed_gives_one_result(self, pair, digit, result):
        again = attack_pair(pair, *digit, result.settings)
        assert torch.equal(again.ensemble.attacked, result.ensemble.attacked)
        assert again.ensemble.after == result.ensemble.after
        other = attack_pair(pair, *digit, replace(result.settings, seed=1))
        assert other.ensemble.after != result.ensemble.after

    @pytest.mark.parametrize("against", ["base", "ensemble"])
    def test_blind_attacks_show_both_the_same_image(self, pair, digit, against):
        settings = DemoSettings(attack="fgsm", epsilon=51, against=against, draws=3)
        found = attack_pair(pair, *digit, settings)
        assert torch.equal(found.base.attacked, found.ensemble.attacked)
        assert "(blind)" in how_attacked(found)

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_every_attack_runs_and_tells_its_progress(self, pair, digit, attack):
        told = []
        settings = DemoSettings(attack=attack, epsilon=20, steps=2, eot=1, draws=2)
        found = attack_pair(pair, *digit, settings, advance=told.append)
        assert told == sorted(told)
        assert told[-1] == pytest.approx(1)
        assert settings.attack_name in how_attacked(found) or attack == "noise"

    def test_without_a_label_it_leads_away_from_the_answer(self, pair, digit):
        settings = DemoSettings(attack="ifgsm", epsilon=128, eot=1)
        found = attack_pair(pair, digit[0], None, settings)
        assert found.base.changed
        assert "true class is not known" in how_attacked(found)

    def test_noise_over_the_batch_is_not_changed_by_copies(self, pair, digit, monkeypatch):
        for place in pair.models()[1].modules():
            if hasattr(place, "std_over"):
                monkeypatch.setattr(place, "std_over", "batch")
        found = attack_pair(pair, *digit, DemoSettings(attack="fgsm", epsilon=1, draws=3))
        assert found.ensemble.before.draws == 3

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"attack": "pdg"}, "attack must be one of .*Did you mean pgd"),
            ({"epsilon": 129}, "epsilon must be .*found 129"),
            ({"epsilon": None}, "epsilon must be a number"),
            ({"steps": 0}, "steps must be at least 1"),
            ({"steps": 100_000}, "steps must be .*200"),
            ({"eot": 2.5}, "eot must be an integer"),
            ({"draws": 10**9}, "draws must be"),
            ({"seed": -1}, "seed must be"),
            ({"against": "me"}, "against must be one of"),
        ],
    )
    def test_bad_settings(self, wrong, words):
        with pytest.raises((TypeError, ValueError), match=words):
            DemoSettings(**wrong)

    def test_bad_images(self, pair, digit):
        with pytest.raises(ValueError, match=r"shape \(1, 8, 8\), found \(3, 8, 8\)"):
            attack_pair(pair, torch.zeros(3, 8, 8))
        with pytest.raises(ValueError, match="label must be below 10, found 10"):
            attack_pair(pair, digit[0], 10)


def answer(top, wins=1, draws=1, classes=10):
    """Return an answer that a class wins so often, and the next class else."""
    won = [0] * classes
    won[top], won[(top + 1) % classes] = wins, draws - wins
    return Answer(tuple(w / draws for w in won), tuple(won))


def told(pair, base, ensemble, label=8):
    """Return the sentence on answers of the plain network, and of the ensemble in 100 draws."""
    sides = [
        Side(name, before, after, torch.zeros(DIGIT), 0.0)
        for name, (before, after) in (("base", base), ("ensemble", ensemble))
    ]
    image, settings = torch.zeros(DIGIT), DemoSettings()
    return what_happened(DemoResult(pair, settings, image, label, *sides))


class TestWords:
    @pytest.mark.parametrize(
        ("base", "ensemble", "label", "sentence"),
        [
            (
                (8, 3),
                ((8, 100), (8, 97)),
                8,
                "The plain network now says 3; the ensemble still says 8 in 97 of 100 draws.",
            ),
            (
                (8, 3),
                ((8, 100), (3, 88)),
                8,
                "Both networks are fooled: the plain network now says 3, and the ensemble now says "
                "3 in 88 of 100 draws.",
            ),
            (
                (8, 8),
                ((8, 99), (8, 61)),
                8,
                "Neither network is fooled: the plain network still says 8, and the ensemble still "
                "says 8 in 61 of 100 draws (before the attack: 99).",
            ),
            (
                (8, 8),
                ((8, 99), (5, 70)),
                None,
                "The plain network still says 8; the ensemble now says 5 in 70 of 100 draws.",
            ),
            (
                (1, 1),
                ((8, 100), (8, 100)),
                8,
                "The plain network still says 1 (which was wrong before the attack too); the "
                "ensemble still says 8 in 100 of 100 draws.",
            ),
            (
                (1, 8),
                ((1, 100), (2, 60)),
                8,
                "The plain network now says 8 (which is right; before the attack it said 1); the "
                "ensemble now says 2 in 60 of 100 draws (it was wrong before the attack too: it "
                "said 1).",
            ),
        ],
    )
    def test_the_sentence(self, pair, base, ensemble, label, sentence):
        noisy = [answer(top, wins, 100) for top, wins in ensemble]
        assert told(pair, [answer(top) for top in base], noisy, label) == sentence

    def test_a_tie_goes_to_the_more_probable_class(self):
        assert Answer((0.1, 0.5, 0.4), (0, 1, 1)).top == 1
        assert Answer((0.1, 0.4, 0.5), (0, 1, 1)).top == 2


class TestView:
    def test_the_page_of_a_result(self, result):
        shown = result_html(result)
        assert what_happened(result) in shown
        assert shown.count("<figure>") == 6
        assert f"the change<br>× {magnification(result):g}" in shown
        assert shown.count("How often each class wins") == 1
        assert "the same answer every time" in shown
        assert "75.6 (71.6-79.2)" in shown  # as the card says
        assert not re.search(r"https?://", shown)

    def test_how_much_the_change_is_magnified(self, result):
        assert magnification(result) == pytest.approx(0.5 / 0.2, rel=0.05)
        still = replace(result.base, largest_change=0.0)
        nothing = replace(result, base=still, ensemble=still)
        assert magnification(nothing) == 1
        assert "NaN" not in result_html(nothing)
        grey = magnified(torch.full((1, 2, 2), 0.2), 2.5)
        assert grey.shape == (3, 2, 2)
        assert (grey[0] > grey[2]).all()  # lighter is red
        colours = magnified(torch.zeros(3, 2, 2), 2.5)
        assert torch.equal(colours, torch.full((3, 2, 2), 0.5))

    def test_of_many_classes_the_most_probable_are_drawn(self, result):
        names = tuple(f"class {number}" for number in range(100))
        card = replace(result.pair.ensemble, classes=names)
        one = replace(
            result.ensemble, before=answer(7, 60, 100, 100), after=answer(50, 80, 100, 100)
        )
        many = replace(
            result, pair=replace(result.pair, ensemble=card), base=one, ensemble=one, label=99
        )
        shown = result_html(many)
        assert "The 10 most probable classes" in shown
        assert all(f"class {number}" in shown for number in (7, 8, 50, 51, 99))

    def test_words_from_outside_are_escaped(self):
        hostile = "<script>alert(1)</script>\x1b[31m"
        for shown in (error_html(hostile), preview_html(torch.zeros(3, 4, 4), [hostile])):
            assert "<script>" not in shown
            assert "\x1b" not in shown


def saved(path, image, **options):
    image.save(path, **options)
    return path


class TestUploads:
    def test_channels_and_size_are_converted_and_said(self, tmp_path):
        image = Image.new("RGB", (40, 30), (255, 0, 0))
        ImageDraw.Draw(image).rectangle((0, 0, 39, 14), fill=(255, 255, 255))
        path = saved(tmp_path / "photo.jpg", image)
        grey, words = read_upload(path, DIGIT)
        assert grey.shape == DIGIT
        assert words == (
            "It had 40 x 30 pixels; it was cut to a square and scaled to 8 x 8. Its colours became "
            "grey."
        )
        assert 0 <= grey.min() < grey.max() <= 1
        inverted, words = read_upload(path, DIGIT, invert=True)
        assert torch.allclose(inverted, 1 - grey)
        assert words.endswith("Light and dark were exchanged.")
        colours, words = read_upload(path, (3, 32, 32))
        assert colours.shape == (3, 32, 32)
        assert "grey" not in words

    def test_cmyk_animated_transparent_and_tiny_ones(self, tmp_path):
        cmyk = saved(tmp_path / "print.jpg", Image.new("CMYK", (20, 20), (0, 0, 0, 0)))
        image, words = read_upload(cmyk, (3, 32, 32))
        assert "CMYK" in words
        assert image.min() > 0.95
        frames = [Image.new("L", (9, 9), shade) for shade in (255, 0, 128)]
        moving = tmp_path / "moving.gif"
        frames[0].save(moving, save_all=True, append_images=frames[1:])
        image, words = read_upload(moving, DIGIT)
        assert "It has 3 pictures; this is the first." in words
        assert image.min() > 0.95
        clear = saved(tmp_path / "clear.png", Image.new("RGBA", (9, 9), (0, 0, 0, 0)))
        assert read_upload(clear, (3, 32, 32))[0].min() == 1
        image, words = read_upload(saved(tmp_path / "1.png", Image.new("L", (1, 1), 77)), DIGIT)
        assert words == "It had 1 x 1 pixels; it was scaled to 8 x 8."
        assert torch.allclose(image, torch.tensor(77 / 255))

    @pytest.mark.parametrize("kind", ["text", "cut", "empty", "bomb", "svg"])
    def test_what_is_no_image_gets_a_sentence(self, tmp_path, kind):
        path = tmp_path / "upload.png"
        if kind == "bomb":
            header = b"P5 30000 30000 255\n"
            path.write_bytes(header + bytes(100))
        elif kind == "cut":
            whole = saved(path, Image.effect_noise((64, 64), 50)).read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
        else:
            path.write_bytes({"text": b"hello", "empty": b"", "svg": b"<svg/>"}[kind])
        with pytest.raises(
            ValueError, match=r"^the file upload\.png is not a whole image"
        ) as found:
            read_upload(path, DIGIT)
        assert page_module._sentence(found.value).startswith("The file upload.png is not a whole")
        assert str(tmp_path) not in str(found.value)

    def test_a_network_that_takes_no_pictures(self, tmp_path):
        with pytest.raises(ValueError, match="choose one of the test images"):
            read_upload(tmp_path / "any.png", (4, 8, 8))

    def test_light_and_dark_are_exchanged_for_grey_networks_alone(self, pair, tmp_path):
        path = str(saved(tmp_path / "night.png", Image.new("L", (8, 8), 0)))
        colour = replace(pair.ensemble, image_shape=(3, 8, 8))
        for one, expected in ((pair, 1.0), (replace(pair, ensemble=colour), 0.0)):
            assert float(page_module._chosen(one, 0, path, True)[0].mean()) == expected


class TestCommand:
    def test_without_gradio_it_says_how_to_install_it(self, monkeypatch, capsys):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        assert main(["demo"]) == 2
        shown = capsys.readouterr().err
        assert "enresnet demo needs gradio, which is not installed" in shown
        assert f"{sys.executable} -m pip install" in shown
        assert "gradio>=" in shown

    def test_ports(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            number = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"--port {number} cannot be used.*leave it out"):
                page_module.free_port(number)
        with pytest.raises(OSError, match="--port 70000 cannot be used"):
            page_module.free_port(70000)
        assert page_module.free_port(0) > 0
        assert page_module.free_port(None) > 0

    def test_no_browser_without_a_display(self, monkeypatch):
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "platform", "linux")
        assert not has_display()
        monkeypatch.setenv("DISPLAY", ":0")
        assert has_display()
        monkeypatch.setenv("SSH_CONNECTION", "far away")
        assert not has_display()

    def test_an_answer_keeps_the_browser_to_this_server(self):
        sent = []

        async def app(_scope, _receive, send):
            await send({"type": "http.response.start", "headers": [(b"a", b"b")]})
            await send({"type": "http.response.body"})

        async def send(message):
            sent.append(message)

        with pytest.raises(StopIteration):
            page_module._WithPolicy(app)({}, None, send).send(None)
        assert sent[0]["headers"][0] == (b"a", b"b")
        assert b"connect-src 'self'" in sent[0]["headers"][1][1]
        assert len(sent) == 2


@pytest.fixture
def server(tmp_path):
    """Yield the address of the demo, in a process of its own, and the process."""
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("gradio is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "enresnet", "demo", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"at (http://127\.0\.0\.1:\d+/)", line):
                    break
            else:
                pytest.fail("".join(lines))
            reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
            reader.start()
            yield found[1], process, lines
        finally:
            process.kill()


def waited(condition, *, seconds=60.0):
    """Return what a condition gives once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise TimeoutError(f"nothing in {seconds:g} s")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_in_a_browser(server, browser, tmp_path):
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    url, process, lines = server

    def text(selector):
        try:
            return browser.find_element(By.CSS_SELECTOR, selector).text
        except WebDriverException:  # not there yet, or drawn anew
            return ""

    def attack(expected):
        browser.find_element(By.ID, "attack").click()
        return waited(lambda: expected(text("#result #demo-sentence")))

    browser.get(url)
    first = waited(lambda: text("#result #demo-sentence"))
    assert "The plain network" in first or "network is" in first or "networks are" in first

    # As far as the slider goes, both networks read something else.
    field = browser.find_element(By.CSS_SELECTOR, "#epsilon input[type=number]")
    field.send_keys(Keys.CONTROL + "a")
    field.send_keys("128" + Keys.TAB)
    changed = attack(lambda shown: shown if shown not in ("", first) else "")
    assert re.search(r"now says \d", changed)
    assert "128.0 of 255" in text("#result")

    # A bad upload gets a sentence, and the next attack works.
    bad = tmp_path / "<img src=x> ${1+1} {{7*7}}.png"
    bad.write_text("no image")
    browser.find_element(By.CSS_SELECTOR, "#own button").click()
    upload = waited(lambda: browser.find_elements(By.CSS_SELECTOR, "#own input[type=file]"))[0]
    upload.send_keys(str(bad))
    waited(lambda: "is not a whole image" in text("#preview"))
    assert "49" not in text("#preview .demo-error")
    attack(lambda shown: "is not a whole image" in shown)
    browser.find_element(
        By.CSS_SELECTOR, "#own [aria-label^='Remove'], #own [aria-label='Clear']"
    ).click()
    waited(lambda: "True class" in text("#preview"))
    attack(lambda shown: shown == changed)

    # Nothing was asked of other hosts, nothing was refused by the policy.
    asked = re.findall(
        r'"Network.requestWillBeSent".*?"url":"(https?://[^"]+)"',
        "\n".join(entry["message"] for entry in browser.get_log("performance")),
    )
    assert asked
    assert [address for address in asked if not address.startswith(url)] == []
    assert [e for e in browser.get_log("browser") if "Content Security" in e["message"]] == []

    # On a phone nothing is wider than the screen.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    browser.find_element(By.CSS_SELECTOR, ".demo-measured summary").click()
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= 390

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    waited(lambda: "The demo has ended\n" in lines)
    assert "Traceback" not in "".join(lines)
    assert list(tmp_path.glob("enresnet-demo-*")) == []
