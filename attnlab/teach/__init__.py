"""Teaching: a kit for a reading group's session on each paper, from one source a paper.

Where what stands:
    what a session is made of                    session.py
    the four sessions                            race.py, residual.py, hashattention.py, lrkv.py
    Markdown and formulas as HTML                text.py, mathml.py
    slides: one offline file, live panels in it  slides.py, slides.html, slides.js
    plan, pre-read sheet, evidence, prompts      sheets.py
    two printed pages; what the group concludes  handout.py, record.py
    files: a template filled, ours replaced      pages.py
    all of it in one folder                      kit.py (attnlab kit)
"""
