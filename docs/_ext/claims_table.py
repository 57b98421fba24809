"""The directive `claims-table MECHANISM`: the claims of a mechanism's claims.py by who says them, read at build time.

If a page PAGE-proofs lies beside PAGE, each claim links to the section where a paragraph opens with it in italics,
as *`name.claim`.* does.
"""

import importlib
from collections import Counter

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnlab.claim import NOBODY, SAID_BY

VERDICTS = ("HOLDS", "CONDITIONAL", "REFUTED")

Cell = list[nodes.Node]  # its paragraphs


class ClaimsTable(SphinxDirective):
    """Whom the verdicts fall on; then every sentence with its verdict, evidence, source, check and proof."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = f"attnlab.{self.arguments[0]}.claims"
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise self.error(f"claims-table needs a module {name}: {error}") from error
        self.env.note_dependency(module.__file__)
        proofs = f"{self.env.docname}-proofs"
        if proofs in self.env.found_docs:
            self.env.note_dependency(str(self.env.doc2path(proofs)))
        groups: dict[str, list] = {who: [] for who in (*SAID_BY.values(), NOBODY)}
        for claim in module.CLAIMS:
            groups[claim.said_by].append(claim)
        shown = [counts_table(groups)]
        for who, claims in groups.items():
            if claims:
                shown += [nodes.rubric("", capital(who)), claims_table(claims, proofs)]
        return shown


def counts_table(groups: dict[str, list]) -> nodes.table:
    rows = []
    everything = [claim for claims in groups.values() for claim in claims]
    for who, claims in (groups | {"all": everything}).items():
        counts = Counter(str(claim.recorded) for claim in claims)
        numbers = [len(claims), *(counts[verdict] for verdict in VERDICTS)]
        rows.append([paragraphs(capital(who)), *(paragraphs(str(n) if n else "–") for n in numbers)])
    return table(["who says it", "claims", "hold", "conditional", "refuted"], (40, 15, 15, 15, 15), rows, "counts")


def claims_table(claims: list, proofs: str) -> nodes.table:
    rows = []
    for claim in claims:
        verdict = nodes.inline("", claim.recorded, classes=["verdict", claim.recorded.lower()])
        check = [nodes.Text("check: "), nodes.literal("", claim.check.__name__)]
        sentence = paragraphs(nodes.literal("", claim.id), claim.says)
        grounds = [*paragraphs(claim.source), nodes.paragraph("", "", *check), Proof(claim=claim.id, page=proofs)]
        rows.append([sentence, paragraphs(verdict, str(claim.evidence)), grounds])
    return table(["sentence", "verdict, evidence", "source, check, proof"], (55, 15, 30), rows, "claims")


def capital(words: str) -> str:
    return words[0].upper() + words[1:]


def table(head: list[str], widths: tuple[int, ...], rows: list[list[Cell]], name: str) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in widths), cols=len(widths))
    group += nodes.thead("", row([paragraphs(title) for title in head]))
    group += nodes.tbody("", *(row(cells) for cells in rows))
    return nodes.table("", group, classes=[name])


def row(cells: list[Cell]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *cell) for cell in cells))


def paragraphs(*content: str | nodes.Node) -> Cell:
    return [nodes.paragraph("", "", nodes.Text(x) if isinstance(x, str) else x) for x in content]


class Proof(nodes.General, nodes.Element):
    """The place of a link to the proof of `claim` on `page`, which is known once every page is read."""


def link_proofs(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    sections: dict[str, dict[str, nodes.section]] = {}  # of each page, by claim
    for place in list(doctree.findall(Proof)):
        page = place["page"]
        if page not in sections:
            sections[page] = proved(app.env.get_doctree(page)) if page in app.env.found_docs else {}
        section = sections[page].get(place["claim"])
        if section is None:
            place.parent.remove(place)
            continue
        uri = f"{app.builder.get_relative_uri(docname, page)}#{section['ids'][0]}"
        link = nodes.reference("", section[0].astext(), refuri=uri, internal=True)
        place.replace_self(nodes.paragraph("", "", nodes.Text("proof: "), link))


def proved(page: nodes.document) -> dict[str, nodes.section]:
    """The section of each claim that opens a paragraph of it."""
    found: dict[str, nodes.section] = {}
    for section in page.findall(nodes.section):
        for paragraph in section.children:
            if isinstance(paragraph, nodes.paragraph) and isinstance(paragraph[0], nodes.emphasis):
                for name in paragraph[0].findall(nodes.literal):
                    found.setdefault(name.astext(), section)
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Proof)
    app.add_directive("claims-table", ClaimsTable)
    app.connect("doctree-resolved", link_proofs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
