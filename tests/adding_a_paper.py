"""The page docs/adding-a-paper.md, followed: a copy of the checkout with the files of the page in it, and a way to run
something there.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("attnlab", "kernels", "tests")
EDITED = "attnlab/__init__.py"
PAGE = (ROOT / "docs" / "adding-a-paper.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)  # language, text
PATH = re.compile(r"(?:#|//) ((?:attnlab|tests)/\S+)\n")
FILES = {match[1]: text for _, text in BLOCKS if (match := PATH.match(text))}  # by the path that the first line names
(LINE,) = (text.rstrip() for _, text in BLOCKS if text.startswith("MECHANISMS = ("))


def follow(folder: Path) -> Path:
    """Copy the checkout into `folder` and do there what the page says."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        with (folder / path).open("x", encoding="utf-8") as file:  # x: no file of this name may be there
            file.write(text)
    before = (folder / EDITED).read_text(encoding="utf-8")
    text, count = re.subn(r"MECHANISMS = \([^)]*\)", LINE, before)
    assert count == 1
    (folder / EDITED).write_text(text, encoding="utf-8")
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Python in the copy, whose packages it sees and no others of these names."""
    path = os.pathsep.join([str(folder), str(folder / "kernels")])
    own = {"PYTHONPATH": path, "ATTNLAB_EXERCISES": str(folder / "exercises.json")}
    own |= {"OMP_NUM_THREADS": "1"}  # arrays are small, and a second thread of torch would wait for a busy core
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
