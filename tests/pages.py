"""Pages of the report for tests: how to read one, and what to put on it."""

from html.parser import HTMLParser
from pathlib import Path

from enresnet.report.contents import Cell, Contents, Measured, Row, Table, Verdict
from enresnet.report.run_facts import RunFacts
from enresnet.training import Run

RESULTS = Path(__file__).parent.parent / "results"
HOSTILE = "<img src=x onerror=alert(1)> \"'&amp; {{7*7}} ${7*7}"
VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """A page as a browser reads it: balanced tags, attributes, text."""

    def __init__(self, path):
        super().__init__()
        self.source = Path(path).read_text(encoding="utf-8")
        self.tags, self.open, self.text, self.ids = [], [], "", []
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, *keys):
        return [v for _, attributes in self.tags for k, v in attributes.items() if k in keys]

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)

    def section(self, name):
        """Return the source of one section."""
        return self.source.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def contents(folder):
    """Return two tables and five claims: measured, not run, contradicted, of all five verdicts."""
    plain, noisy = folder / "resnet8", folder / "en3_resnet8"

    def cell(metric, paper, mean, *folders, note=""):
        seeds = tuple(range(len(folders)))
        ours = Measured(mean, mean - 1, mean + 2, seeds, 500, folders) if folders else None
        return Cell(metric, paper, ours, note)

    rows = (
        Row(
            "ResNet8 & co",
            "resnet8",
            (
                cell("natural", 75.11, 98.6, plain, plain),
                cell("ifgsm20", 46.03, 75.6, plain, note="53.05 in the text"),
                cell("strongest", None, 71.0, plain),
            ),
        ),
        Row(
            "En3ResNet8",
            "en3_resnet8",
            (
                cell("natural", 80.34, 99.0, noisy),
                cell("ifgsm20", 50.06, 0.0),
                cell("strongest", None, 0.0),
            ),
        ),
        Row("En5ResNet8", "en5_resnet8", (cell("natural", 82.5, 0.0),)),
    )
    claims = (
        ("holds", 2.1, (1.5, 0.5, 2.5, 0.01, (0, 1, 2), (noisy, plain))),
        ("fails", 3.0, (-1.0, -1.5, -0.5, 2.1e-12, (0, 1), (noisy, plain))),
        ("undecided", None, (0.1, -0.9, 1.1, 0.8, (0,), (noisy, plain))),
        ("not comparable", 1.0, (None, None, None, None, (0,), (noisy, plain))),
        ("not run", 4.2, ()),
    )
    verdicts = tuple(
        Verdict(
            f"claim-{n}",
            f"The claim number {n}.",
            "Table 2",
            decision,
            paper,
            *found,
            note=["One seed.", "Contradicted.", "One seed.", "No scores.", ""][n],
        )
        for n, (decision, paper, found) in enumerate(claims)
    )
    table = Table("table2", "Robust networks", "digits", rows, "Smaller than the paper's.")
    empty = Table(
        "mask", "Checks for masking", "digits", (Row("A", "a", (Cell("natural", 92.0),)),)
    )
    return Contents((table, empty), verdicts, remarks=("There are two runs of one network.",))


def facts_of(folder, *names):
    return [RunFacts.read(Run.open(folder / name)) for name in names or ("resnet8", "en3_resnet8")]
