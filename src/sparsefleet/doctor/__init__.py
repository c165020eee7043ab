"""What a report of a problem should tell of a machine: versions, processor, limits, settings, and how fast it is.

Works on machines that only serve: torch is looked at where it is installed, and never needed.
"""

from sparsefleet.doctor.findings import Finding, Report, Section, Verdict
from sparsefleet.doctor.run import examine

__all__ = ["Finding", "Report", "Section", "Verdict", "examine"]
