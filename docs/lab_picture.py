"""Take the README's picture of the running lab again: python docs/lab_picture.py, with Chromium and the extra `all`."""

from pathlib import Path

from attnlab.bench import _lab

ROOT = Path(__file__).parents[1]
FIRST = "00_start_here.ipynb"


def main() -> None:
    with _lab.jupyterlab() as lab, _lab.chromium() as chromium:
        (lab.folder / FIRST).write_bytes((ROOT / "notebooks" / FIRST).read_bytes())
        page = chromium.new_page(viewport={"width": 1360, "height": 1080})
        page.goto(f"{lab.url}/lab/tree/{FIRST}?reset")
        page.wait_for_function(_lab.IDLE, timeout=60_000)
        page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        race = page.get_by_role("region", name="RACE attention")
        race.locator(".al-verify [role=listitem]").last.wait_for(timeout=60_000)  # the notebook verifies it
        page.wait_for_function(_lab.IDLE)
        race.evaluate("(panel) => panel.scrollIntoView()")
        page.wait_for_timeout(3000)
        page.screenshot(path=ROOT / "docs" / "_static" / "lab.png")


if __name__ == "__main__":
    main()
