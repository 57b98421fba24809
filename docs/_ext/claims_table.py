"""The directive `claims-table MECHANISM`: a table of claims, read from the claims.py of a mechanism at build time."""

import importlib
from collections import Counter

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COLUMNS = (("claim", 60), ("verdict, evidence", 15), ("source, check", 25))


class ClaimsTable(SphinxDirective):
    """Every claim with its sentence, recorded verdict, evidence, source, and the function of claims.py that decides."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = f"attnlab.{self.arguments[0]}.claims"
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise self.error(f"claims-table needs a module {name}: {error}") from error
        self.env.note_dependency(module.__file__)
        counts = Counter(claim.recorded for claim in module.CLAIMS)
        summary = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
        return [nodes.paragraph("", f"{len(module.CLAIMS)} claims: {summary}."), table(module.CLAIMS)]


def table(claims) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for _, width in COLUMNS), cols=len(COLUMNS))
    group += nodes.thead("", row(*([nodes.Text(title)] for title, _ in COLUMNS)))
    group += nodes.tbody("", *(claim_row(claim) for claim in claims))
    return nodes.table("", group, classes=["claims"])


def claim_row(claim) -> nodes.row:
    verdict = nodes.inline("", claim.recorded, classes=["verdict", claim.recorded.lower()])
    return row(
        [nodes.literal("", claim.id), nodes.Text(claim.says)],
        [verdict, nodes.Text(claim.evidence)],
        [nodes.Text(claim.source), nodes.literal("", claim.check.__name__)],
    )


def row(*cells: list[nodes.Node]) -> nodes.row:
    """One paragraph for each node of a cell."""
    return nodes.row("", *(nodes.entry("", *(nodes.paragraph("", "", node) for node in cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("claims-table", ClaimsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
