"""`python -m sparsefleet.launch`: the same as `fleetrun`."""

import sys

from sparsefleet.launch import main

sys.exit(main())
