"""Models for the Hub, in a folder and back; nothing here touches the network."""

import json
import sys

import pytest
import torch
import yaml

from enresnet.models import create_model, set_noise
from enresnet.training import RunConfig, train
from problems import seeded
from trainings import QUICK

ROWS = [
    {"images": "clean", "accuracy": 0.9, "low": 0.8, "high": 0.95, "number": 100, "draws": 10},
    {
        "images": "ifgsm20",
        "accuracy": 0.5,
        "low": 0.4,
        "high": 0.6,
        "number": 100,
        "draws": 10,
        "epsilon": 8 / 255,
        "attack": "IFGSM(steps=20)",
        "data": "cifar10",
        "seconds": 3.0,
    },
]


def test_without_the_library_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "enresnet.publish.hub", raising=False)
    import enresnet.publish

    monkeypatch.delitem(vars(enresnet.publish), "HubModel", raising=False)
    with pytest.raises(ImportError, match=r"pip install .*huggingface_hub"):
        _ = enresnet.publish.HubModel


class TestFolder:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch):
        pytest.importorskip("huggingface_hub")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def published(self, model=None, **options):
        from enresnet.publish import HubModel

        model = model or create_model("en2_resnet8", in_channels=1, generator=seeded()).eval()
        options = {"name": "mine", "classes": ["a", "b"], "data": "cifar10", **options}
        return HubModel(model, measured=ROWS, **options)

    def test_there_and_back(self, tmp_path):
        from enresnet.publish import HubModel

        mine = self.published()
        mine.save_pretrained(tmp_path / "m")
        assert {p.name for p in (tmp_path / "m").iterdir()} == {
            "README.md",
            "config.json",
            "model.safetensors",
        }
        again = HubModel.from_pretrained(tmp_path / "m")
        assert (again.name, again.classes, again.data) == ("mine", ("a", "b"), "cifar10")
        assert again.measured == mine.measured
        images = torch.rand(2, 1, 8, 8)
        for one in (mine, again):
            set_noise(one.model, 0.0)
        assert torch.equal(mine(images), again(images))

    def test_the_command_evaluates_it(self, tmp_path, monkeypatch, capsys):
        from enresnet.cli import main

        monkeypatch.chdir(tmp_path)
        self.published().save_pretrained("theirs")
        words = ["--data", "digits", "--attacks", "fgsm", "--limit", "4", "--draws", "1"]
        assert main(["evaluate", "theirs", *words]) == 0
        assert (tmp_path / "evaluations" / "theirs").is_dir()
        assert main(["evaluate", "theirs", "--checkpoint", "last", *words]) == 2
        assert "--checkpoint is for runs; theirs is not a run" in capsys.readouterr().err

    def test_the_card(self, tmp_path):
        self.published().save_pretrained(tmp_path)
        _, head, page = (tmp_path / "README.md").read_text().split("---\n", 2)
        facts = yaml.safe_load(head)
        assert facts["library_name"] == "enresnet"
        (index,) = facts["model-index"]
        metrics = [metric for result in index["results"] for metric in result["metrics"]]
        assert {metric["name"] for metric in metrics} == {
            "natural accuracy (100 images, 95 % interval 80.0-95.0)",
            "robust accuracy under ifgsm20 at epsilon 8/255 (100 images, 95 % interval 40.0-60.0)",
        }
        assert {metric["value"] for metric in metrics} == {90.0, 50.0}
        assert "50.0 (40.0-60.0)" in page
        assert "seconds" not in page

    def test_of_a_run(self, tmp_path, monkeypatch):
        from enresnet.cli import main
        from enresnet.publish import HubModel

        monkeypatch.chdir(tmp_path)
        train(RunConfig("resnet8", "digits", QUICK, limit=200), "run")
        assert main("evaluate run --attacks fgsm --limit 20".split()) == 0
        mine = HubModel.of_run("run")
        assert [row["images"] for row in mine.measured] == ["clean", "fgsm"]
        mine.save_pretrained("out")
        assert len(HubModel.from_pretrained("out").classes) == 10

    @pytest.mark.parametrize(
        "facts",
        [
            "[]",
            "{}",
            '{"library": "other"}',
            "not json",
            '{"library": "enresnet", "name',
            '{"library": "enresnet", "name": 3, "classes": [], "data": "", "measured": []}',
            '{"library": "enresnet", "name": "", "classes": [], "data": "", "measured": [{}]}',
            "[" * 100_000,
        ],
    )
    def test_damaged_descriptions_get_a_sentence(self, tmp_path, facts):
        from enresnet.publish import HubModel

        self.published().save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(facts)
        with pytest.raises(ValueError, match=r"description of a model"):
            HubModel.from_pretrained(tmp_path)

    def test_weights_are_checked(self, tmp_path):
        from enresnet.publish import HubModel

        self.published().save_pretrained(tmp_path)
        path = tmp_path / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="does not match its digest"):
            HubModel.from_pretrained(tmp_path)

    def test_no_code_runs(self, tmp_path, monkeypatch):
        from enresnet.publish import HubModel

        (tmp_path / "own_hub.py").write_text(
            "from torch import nn\n"
            "def build(num_classes, in_channels):\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))\n"
        )
        monkeypatch.chdir(tmp_path)
        model = create_model("own_hub:build", in_channels=1, image_size=8)
        self.published(model).save_pretrained("m")
        with pytest.raises(ValueError, match="names code"):
            HubModel.from_pretrained("m")
        assert HubModel.from_pretrained("m", trust_code=True).model is not None
        sys.modules.pop("own_hub")
        assert json.loads((tmp_path / "m" / "config.json").read_text())["library"] == "enresnet"
