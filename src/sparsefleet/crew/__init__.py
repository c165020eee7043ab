"""The trainers of one job, as each of them sees the others."""

from sparsefleet.crew.base import Crew, CutMember, Entry, LeaseState, PassLender, Reports
from sparsefleet.crew.one import CrewOfOne

__all__ = ["Crew", "CrewOfOne", "CutMember", "Entry", "LeaseState", "PassLender", "Reports"]
