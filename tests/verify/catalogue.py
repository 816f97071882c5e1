"""All faults outside of modules, in one list."""

from __future__ import annotations

from tests.verify.fresh_faults import FRESH_FAULTS
from tests.verify.hunted_faults import HUNTED_FAULTS
from tests.verify.late_faults import LATE_FAULTS
from tests.verify.more_faults import MORE_FAULTS
from tests.verify.whole_faults import WHOLE_FAULTS

FAULTS = (*WHOLE_FAULTS, *MORE_FAULTS, *HUNTED_FAULTS, *LATE_FAULTS, *FRESH_FAULTS)
