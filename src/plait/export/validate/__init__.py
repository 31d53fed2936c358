"""Validation of exported files, plait's and Orbax Export's, under Orbax Export's module name."""

from ..orbax.validation import ValidationManager as ValidationManager
from ..orbax.validation_job import ValidationJob as ValidationJob
from ..orbax.validation_report import (
    FloatingPointDiffReport as FloatingPointDiffReport,
    NonFloatingPointDiffReport as NonFloatingPointDiffReport,
    Status as Status,
    ValidationReport as ValidationReport,
    ValidationReportOption as ValidationReportOption,
    ValidationSingleJobResult as ValidationSingleJobResult,
)
from ..proof.report import ExportReport as ExportReport, validate_export as validate_export

__all__ = [name for name in dir() if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
