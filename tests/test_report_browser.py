"""The report in a browser: headless Chromium, if it is there."""

import re

import pytest

from enresnet.report import find_runs, write_report
from pages import HOSTILE, RESULTS, contents


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_in_a_browser(runs, tmp_path, browser):
    from selenium.webdriver.common.by import By

    found = find_runs([runs, RESULTS / "cifar10"])
    page = tmp_path / "report.html"
    title = f"A report {HOSTILE}"
    write_report(page, found.runs, contents(runs), transfers=found.transfers, images=2, title=title)

    def column(table, number):
        script = f"return [...document.querySelectorAll('{table} tbody tr')].map("
        return browser.execute_script(f"{script}r => r.cells[{number}].innerText.split('\\n')[0])")

    def click(table, head):
        path = f"//table[contains(@class, '{table}')]//button[normalize-space()='{head}']"
        browser.find_element(By.XPATH, path).click()

    def colour():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    for width in (1280, 390):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        browser.get(page.as_uri())
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width

    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(page.as_uri())
    assert browser.find_element(By.TAG_NAME, "h1").text == title

    # Numbers sort as numbers, both ways, and what was not run stays last.
    click("runs", "ifgsm20")
    shown = [float(v) for v in column(".runs", 7) if v != "not run"]
    assert column(".runs", 7)[-1] == "not run"
    assert shown == sorted(shown)
    assert len(shown) >= 6  # more as results come
    click("runs", "ifgsm20")
    assert [float(v) for v in column(".runs", 7)[: len(shown)]] == shown[::-1]
    assert column(".runs", 7)[-1] == "not run"
    heads = browser.find_elements(By.CSS_SELECTOR, ".runs th[aria-sort]")
    assert [head.get_attribute("aria-sort") for head in heads] == ["descending"]
    click("claims", "verdict")
    click("claims", "verdict")
    assert column(".claims", 1) == ["≠ not comparable", "? undecided", "✗ fails", "✓ holds"]
    click("paper", "seeds")
    assert column("[open] .paper", 0)[-1] == "En5ResNet8"  # it has no seed

    # A figure leads to its run, which opens.
    link = browser.find_element(By.LINK_TEXT, "98.6")
    anchor = link.get_attribute("href").partition("#")[2]
    assert browser.find_element(By.ID, anchor).get_attribute("open") is None
    link.click()
    assert browser.find_element(By.ID, anchor).get_attribute("open")

    # Light and dark: the system's, until the reader chooses, who is remembered.
    assert colour() == "rgb(255, 255, 255)"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert colour() == "rgb(21, 23, 26)"
    browser.find_element(By.ID, "theme").click()
    assert colour() == "rgb(255, 255, 255)"
    browser.get(page.as_uri())
    assert colour() == "rgb(255, 255, 255)"
    browser.find_element(By.ID, "theme").click()
    assert colour() == "rgb(21, 23, 26)"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert colour() == "rgb(255, 255, 255)"

    # Paper cannot be unfolded: all is open while it is printed, and as it was after that.
    folded = "return document.querySelectorAll('details:not([open])').length"
    before = browser.execute_script(folded)
    assert before > 0
    look = f"() => {{ window.folded = (() => {{ {folded} }})(); }}"
    browser.execute_script(f"window.addEventListener('beforeprint', {look})")
    browser.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.execute_script("return window.folded") == 0
    assert browser.execute_script(folded) == before

    # No word was said to the console, nothing was asked of anyone.
    assert browser.get_log("browser") == []
    asked = re.findall(
        r'"Network.requestWillBeSent".*?"url":"([^"]+)"',
        "\n".join(entry["message"] for entry in browser.get_log("performance")),
    )
    assert asked
    # chrome: is the browser's own first tab
    assert {address.partition(":")[0] for address in asked} <= {"file", "data", "chrome"}
