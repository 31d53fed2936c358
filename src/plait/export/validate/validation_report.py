"""The names of Orbax Export's ``validate.validation_report``; ``orbax/`` defines them."""

from ..orbax.validation_report import (
    FloatingPointDiffReport as FloatingPointDiffReport,
    NonFloatingPointDiffReport as NonFloatingPointDiffReport,
    Status as Status,
    ValidationReport as ValidationReport,
    ValidationReportOption as ValidationReportOption,
    ValidationSingleJobResult as ValidationSingleJobResult,
)
