"""The panel of the page *Adding a paper*, exported from a copy of the checkout that has its files."""

import json

import pytest

from tests.adding_a_paper import follow, python
from tests.browser.panel_on_page import number_of, painted, settle, shown, slider

MEANS = """
import json
from attnlab.window import view

print(json.dumps([float(view.compute(view.PARAMS(window=w))["kept"].mean()) for w in (8, 9, 256)]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("copy"))


def test_the_page_opens_and_its_dial_changes_the_number_to_python_s(copy, page):
    done = python(copy, "-m", "attnlab.cli", "export", "window", "window.html")
    assert done.returncode == 0, done.stderr
    means = json.loads(python(copy, "-c", MEANS).stdout)
    page.goto((copy / "window.html").as_uri())
    painted(page)
    for key, window, mean in zip((None, "ArrowRight", "End"), (8, 9, 256), means, strict=True):
        if key:
            slider(page, "window w").press(key)
            settle(page)
        assert shown(page, "window w") == str(window)
        said, number = number_of(page, "kept").split()
        assert said == "mean"
        assert float(number) == pytest.approx(mean, abs=5.1e-4)  # three digits are shown
    assert means[0] < means[1] - 0.01 < means[2] == pytest.approx(1.0)
