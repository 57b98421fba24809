"""Interpreted kernels round as a GPU does: the shim is in place before the first launch."""

import pytest

from attnlab import backend


@pytest.fixture(scope="session", autouse=True)
def rounded_as_on_a_gpu():
    """Bare, the interpreter is wrong on bfloat16, and multiplies in exact float32 where a GPU takes tf32."""
    if backend.interpreting():
        from attnlab_kernels.testing import interpreter

        interpreter.install()
