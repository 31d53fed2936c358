"""Validation of exported files, plait's and Orbax Export's, under Orbax Export's module name."""

from .orbax.validation import ValidationManager
from .orbax.validation_job import ValidationJob
from .orbax.validation_report import (
    FloatingPointDiffReport,
    NonFloatingPointDiffReport,
    Status,
    ValidationReport,
    ValidationReportOption,
    ValidationSingleJobResult,
)
from .proof.report import ExportReport, validate_export

__all__ = [
    "ExportReport",
    "FloatingPointDiffReport",
    "NonFloatingPointDiffReport",
    "Status",
    "ValidationJob",
    "ValidationManager",
    "ValidationReport",
    "ValidationReportOption",
    "ValidationSingleJobResult",
    "validate_export",
]
