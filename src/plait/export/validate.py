"""Comparisons of exported files with their originals, plait's and those of Orbax Export, under its module's name."""

from .orbax.validation import ValidationManager as ValidationManager
from .orbax.validation_job import ValidationJob as ValidationJob
from .orbax.validation_report import (
    FloatingPointDiffReport as FloatingPointDiffReport,
    NonFloatingPointDiffReport as NonFloatingPointDiffReport,
    Status as Status,
    ValidationReport as ValidationReport,
    ValidationReportOption as ValidationReportOption,
    ValidationSingleJobResult as ValidationSingleJobResult,
)
from .proof.report import ExportReport as ExportReport, validate_export as validate_export
