"""``python -m sessile.server.doctor.cuda``: the GPU's self-test on its own."""

from __future__ import annotations

import sys

from .report import main

sys.exit(main(sys.argv[1:]))
