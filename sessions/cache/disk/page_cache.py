"""Asks the system whether a part of a file is in its page cache. Reads nothing, and changes nothing."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

_PAGE = mmap.PAGESIZE


def page_is_cached(descriptor: int, offset: int) -> bool:
    """Whether the page with the byte at ``offset`` of an open file is in memory. False where the system does not tell:
    then it counts as being on the disk alone.

    Raises:
        OSError: the file cannot be mapped.
    """
    if sys.platform != "linux":
        return False
    try:
        page = mmap.mmap(descriptor, _PAGE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=offset // _PAGE * _PAGE)
    except ValueError:  # the file ends before it
        return False
    with page:
        mapped = np.frombuffer(page, dtype=np.uint8)
        resident = (ctypes.c_ubyte * 1)()
        status = ctypes.CDLL(None).mincore(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(_PAGE), resident)
        del mapped  # a page that is looked at cannot be unmapped
        return status == 0 and bool(resident[0] & 1)
