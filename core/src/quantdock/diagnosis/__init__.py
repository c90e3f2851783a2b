"""``doctor``: eight checks of a checkpoint on a platform, in the order people debug by hand."""

from quantdock.diagnosis.examination import doctor
from quantdock.diagnosis.report import Finding, Outcome, Report

__all__ = ["Finding", "Outcome", "Report", "doctor"]
