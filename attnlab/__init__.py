"""attnlab: a laboratory for attention papers.

Importing this package needs NumPy only. A mechanism, and whatever optional package one of its rooms needs, is loaded
when it is first touched::

    import attnlab
    attnlab.race.attention(q, k, v, planes, sharpness, causal=True)     # loads attnlab.race here
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"

MECHANISMS = (
    "race",
    "residual",
    "hashattention",
    "lrkv",
)  # a further paper is a folder of this name and one more entry here

__all__ = [*MECHANISMS, "MECHANISMS", "__version__"]


def __getattr__(name: str) -> ModuleType:
    if name in MECHANISMS:
        return importlib.import_module(f"attnlab.{name}")
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}; the mechanisms are {', '.join(MECHANISMS)}")


def __dir__() -> list[str]:
    return sorted(__all__)
