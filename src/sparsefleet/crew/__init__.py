"""The trainers of one job, as each of them sees the others."""

from sparsefleet.crew.base import Crew, CutMember, Reports
from sparsefleet.crew.one import CrewOfOne

__all__ = ["Crew", "CrewOfOne", "CutMember", "Reports"]
