"""The sheets: what stands in them, and that the group's sheets keep the answers to themselves."""

import re

import pytest

from attnlab.claim import Verdict
from attnlab.teach import pages, sheets
from tests.teach.made_up import SESSION


def test_the_plan_counts_minutes_and_has_every_answer():
    plan = sheets.plan(SESSION)
    assert re.findall(r"^### (\d+)–(\d+): ", plan, re.MULTILINE) == [("0", "5"), ("5", "60"), ("0", "10"), ("10", "90")]
    assert "## 23 minutes, on one page" in plan
    for one in (*SESSION.preread, *SESSION.prompts):
        assert one.answer in plan


@pytest.mark.parametrize("sheet", [sheets.preread, sheets.prompts, sheets.evidence])
def test_what_the_group_gets_has_no_answers(sheet):
    said = sheet(SESSION)
    assert not [one.answer for one in (*SESSION.preread, *SESSION.prompts) if one.answer in said]


def test_the_prereading_sheet_has_five_questions_and_where_to_look():
    said = sheets.preread(SESSION)
    assert all(one.ask in said and one.place in said for one in SESSION.preread)
    assert len(re.findall(r"^\d\. ", said, re.MULTILINE)) == 5


def test_every_claim_has_its_row_with_page_verdict_evidence_and_cell():
    html = pages.document("claims", sheets.evidence(SESSION))
    rows = re.findall(r"<tr>\n<td><code>(race\.[\w.-]+)</code>(.*?)</tr>", html, re.DOTALL)
    assert sorted(name for name, _ in rows) == sorted(claim.id for claim in SESSION.claims)
    for claim in SESSION.claims:
        cells = re.findall(r"<td>(.*?)</td>", dict(rows)[claim.id], re.DOTALL)
        assert len(cells) == 4  # the first was cut off above
        assert cells[1] == f"<strong>{claim.recorded}</strong>"
        assert cells[2] == str(claim.evidence)
        assert cells[3] == "<code>05_claims</code> RACE"


def test_the_verdicts_are_counted():
    said = sheets.evidence(SESSION)
    (total,) = re.findall(r"^\| All \| (.*) \|$", said, re.MULTILINE)
    counts = [sum(claim.recorded == verdict for claim in SESSION.claims) for verdict in Verdict]
    assert [int(number) for number in total.replace("–", "0").split(" | ")] == [len(SESSION.claims), *counts]


def test_a_prompt_is_a_link_a_slide_and_a_call_that_runs():
    said = sheets.prompts(SESSION)
    calls = re.findall(r"```python\n(.*?)```", said, re.DOTALL)
    assert len(calls) == len(SESSION.prompts)
    for number, (prompt, call) in enumerate(zip(SESSION.prompts, calls, strict=True), 1):
        assert f"<panel.html{SESSION.link(prompt.scene)}>" in said
        assert f"<slides.html#prompt-{number}>" in said
        names: dict = {}
        *lines, last = call.strip().splitlines()
        exec("\n".join(lines), names)
        assert eval(last, names).state == SESSION.state(prompt.scene)


def test_long_answers_stay_in_their_entry():
    assert sheets._item(2, "one\n\n- two") == "2. one\n\n   - two"


def test_another_file_is_replaced_only_when_forced(tmp_path):
    path = tmp_path / "plan.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="did not write"):
        pages.write(path, "<p>")
    assert path.read_text() == "mine"
    pages.write(path, pages.document("one", "one"), force=True)
    pages.write(path, pages.document("two", "two"))
    assert "two" in path.read_text()
    with pytest.raises(ValueError, match=r"must end in \.html or \.pdf or \.md"):
        pages.write(tmp_path / "plan.txt", "x")


def test_the_sheets_can_be_read_on_a_phone_in_both_themes(open_kit):
    for name in sheets.SHEETS:
        page = open_kit(f"{name}.html", viewport={"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        colours = []
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            colours.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        assert colours == ["rgb(255, 255, 255)", "rgb(17, 17, 20)"]
