"""Arrays as text, on their way to the JavaScript tests."""

import base64

import numpy as np


def coded(array: np.ndarray, dtype: str = "<f8") -> str:
    """Its little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()
