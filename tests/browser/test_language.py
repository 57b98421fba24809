"""Another language is two files: the kit's words and the panel's. Here both are made up, in capitals."""

import base64
import re
import shutil
from pathlib import Path

import pytest

from attnlab import panels
from attnlab.panels.bundle import bundle, languages

PACKAGE = Path(panels.__file__).parents[1]


@pytest.fixture(scope="module")
def bilingual(tmp_path_factory):
    """The RACE panel's module with a second language, "xx", whose words between quotes are English in capitals."""
    root = tmp_path_factory.mktemp("package")
    for folder in ("panels", "race"):
        shutil.copytree(PACKAGE / folder, root / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        words = (root / folder / "labels.en.js").read_text(encoding="utf-8")
        loud = re.sub(r': "([^"]*)"', lambda match: f': "{match[1].upper()}"', words)
        (root / folder / "labels.xx.js").write_text(loud, encoding="utf-8")
    spec = panels.spec("race") | {"languages": languages("race", root)}
    assert spec["languages"] == ["en", "xx"]
    return base64.b64encode(bundle("race", spec, root).encode()).decode()


def test_a_second_language_is_chosen_and_everything_else_stays(page, bilingual):
    page.set_content("<!doctype html><body><main></main>")
    page.evaluate(
        """async (text) => {
            const { mount } = await import("data:text/javascript;base64," + text);
            window.saved = [];
            const host = { python: true, save: (state) => window.saved.push(state) };
            window.view = mount(document.querySelector("main"), { host });
        }""",
        bilingual,
    )
    planes = page.get_by_label("planes P", exact=True)
    planes.focus()
    planes.press("ArrowRight")
    page.get_by_label("Language", exact=True).select_option("xx")
    page.wait_for_function("document.querySelector('.al-title b').textContent === 'RACE ATTENTION'")
    assert page.locator(".attnlab").count() == 1
    assert page.locator(".attnlab").get_attribute("lang") == "xx"
    assert page.get_by_role("button", name="VERIFY").is_visible()
    source = "document.querySelector('[data-figure=buckets] .al-source').innerText"
    page.wait_for_function(f"{source} === 'ALGORITHM 1, P. 5'")  # it comes with the picture
    assert page.get_by_label("planes P", exact=True).locator("xpath=../output").inner_text() == "4"
    page.wait_for_function("window.saved.at(-1)?.language === 'xx'")
    page.evaluate("window.view.show({ ...window.saved.at(-1), language: 'en' })")
    page.wait_for_function("document.querySelector('.al-title b').textContent === 'RACE attention'")


def test_the_report_and_an_error_outlive_the_change(page, bilingual):
    page.set_content("<!doctype html><body><main></main>")
    page.evaluate(
        """async (text) => {
            const { mount } = await import("data:text/javascript;base64," + text);
            const view = mount(document.querySelector("main"), {});
            view.report({ dials: {}, rows: [{ impl: "numba", ran: false, why_not: "Not here." }] });
            view.fail("RuntimeError: on fire");
        }""",
        bilingual,
    )
    page.get_by_label("Language", exact=True).select_option("xx")
    page.wait_for_function("document.querySelector('.al-title b').textContent === 'RACE ATTENTION'")
    assert page.locator(".al-verify [role=listitem]").inner_text().split("\n")[-1] == "Not here."
    assert "RuntimeError: on fire" in page.locator(".al-error").inner_text()
    page.locator(".attnlab").evaluate("root => root.remove()")  # the strip was meant
