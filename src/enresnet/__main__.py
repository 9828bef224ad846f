"""``python -m enresnet`` is the command ``enresnet``."""

import sys

from enresnet.cli import main

sys.exit(main())
