"""The record: the form saves what `markdown` writes, reads it back, and hides the verdicts until they are asked for."""

from pathlib import Path

import pytest

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
    assert (tmp_path / "record.md").read_text() == filled


def test_a_sheet_that_was_edited_stays_and_stops_the_kit_before_anything_is_written(tmp_path):
    list(kit.write(tmp_path, SESSION))
    edited = (tmp_path / "plan.md").read_text() + "Bring the cable.\n"
    (tmp_path / "plan.md").write_text(edited)
    (tmp_path / "slides.html").unlink()
    with pytest.raises(FileExistsError, match=r"plan\.md is a file that attnlab did not write, or that was changed"):
        list(kit.write(tmp_path, SESSION))
    assert not (tmp_path / "slides.html").exists()
    assert (tmp_path / "plan.md").read_text() == edited
    list(kit.write(tmp_path, SESSION, force=True))
    assert "cable" not in (tmp_path / "plan.md").read_text()


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

    (tmp_path / "more.md").write_text(f"{text}\n## Actions\n\nRead the appendix.\n", encoding="utf-8")
    with page.expect_event("dialog") as asked:  # what is in the form is replaced only when that is wanted
        page.set_input_files("#load", tmp_path / "more.md")
    asked.value.dismiss()
    assert answers(page) == before
    with page.expect_event("dialog") as asked:
        page.set_input_files("#load", tmp_path / "more.md")
    asked.value.accept()
    page.get_by_label("Sections of the file that this form does not know").wait_for()
    assert saved(page) == f"{text}\n## Actions\n\nRead the appendix.\n"
    before = answers(page)

    two = text.replace("[x] holds with", "[x] holds with conditions [x] fails [ ] holds with")
    (tmp_path / "two.md").write_text(two, encoding="utf-8")
    with page.expect_event("dialog") as asked:
        page.set_input_files("#load", tmp_path / "two.md")
    asked.value.accept()
    page.locator("#told", has_text=f"several boxes are marked for {CLAIM}: choose one").wait_for()
    before = answers(page)
    assert CLAIM not in before

    (tmp_path / "other.md").write_text("# Something else\n")
    page.set_input_files("#load", tmp_path / "other.md")
    page.locator("#told", has_text="was not read").wait_for()
    assert answers(page) == before
