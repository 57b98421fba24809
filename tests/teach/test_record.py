"""The record: the form saves what `markdown` writes, reads it back, and hides the verdicts until they are asked for."""

from pathlib import Path

from attnlab.teach import kit, record
from tests.teach.made_up import SESSION

CLAIM = "race.lemma10"


def test_the_markdown_has_every_claim_and_no_verdict():
    text = record.markdown(SESSION)
    for claim in SESSION.claims:
        assert f"\n### {claim.id}\n" in text
        assert claim.source in text
        assert " ".join(claim.says.split()) in text
    assert not [verdict for verdict in ("HOLDS", "REFUTED", "CONDITIONAL") if verdict in text]
    assert text.count("[ ] holds with conditions") == len(SESSION.claims)


def test_a_record_that_was_filled_in_stays(tmp_path):
    list(kit.write(tmp_path, SESSION))
    filled = (tmp_path / "record.md").read_text().replace("- Group: ", "- Group: Tuesdays")
    (tmp_path / "record.md").write_text(filled)
    kept = [why for path, why in kit.write(tmp_path, SESSION) if path.name == "record.md"]
    assert kept == ["it has been filled in, and stays as it is"]
    assert (tmp_path / "record.md").read_text() == filled
    list(kit.write(tmp_path, SESSION, force=True))
    assert (tmp_path / "record.md").read_text() == record.markdown(SESSION)


def saved(page) -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as Markdown").click()
    assert download.value.suggested_filename == "race-record.md"
    return Path(download.value.path()).read_text(encoding="utf-8")


def answers(page) -> dict:
    return page.evaluate("Object.fromEntries([...new FormData(document.querySelector('#record'))])")


def test_the_form_saves_reads_and_keeps_what_the_group_believes(open_kit, tmp_path):
    page = open_kit("record.html", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert saved(page) == record.markdown(SESSION)

    form = page.locator(f"[data-claim='{CLAIM}']")
    found = form.get_by_text("REFUTED")
    assert not found.is_visible()
    form.get_by_text("Show what attnlab found").click()
    assert found.is_visible()

    form.get_by_label("holds with conditions").check()
    reason = "Only where $L$ is small.\n\n## not a heading\n- a list"
    form.get_by_label("Reason").fill(reason)
    page.get_by_label("Group").fill("Tuesdays")
    page.get_by_label("Date").fill("2026-03-04")
    page.get_by_label("Open questions").fill("# Which one?")
    before = answers(page)
    assert page.locator("#count").inner_text() == f"1 of {len(SESSION.claims)} claims decided"
    text = saved(page)
    assert "[ ] holds [x] holds with conditions [ ] fails" in text
    assert "- Group: Tuesdays" in text

    page.reload()  # what was typed is still there
    assert answers(page) == before

    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Clear").click()
    assert answers(page) != before
    (tmp_path / "saved.md").write_text(text, encoding="utf-8")
    page.set_input_files("#load", tmp_path / "saved.md")
    page.locator("#told", has_text="read saved.md").wait_for()
    assert answers(page) == before
    assert saved(page) == text

    (tmp_path / "other.md").write_text("# Something else\n")
    page.set_input_files("#load", tmp_path / "other.md")
    page.locator("#told", has_text="was not read").wait_for()
    assert answers(page) == before
