"""What every test shares."""

from __future__ import annotations

import os

# The tests' tensors are tiny: threads that wait for one another cost more than they bring. This
# also reaches the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
