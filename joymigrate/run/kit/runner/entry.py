"""`python kit/run.py`: meet this kit's predictions with the chip of this machine."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runner.main import main  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(main())
