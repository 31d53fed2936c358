"""The names of Orbax Export's ``validate.validation_job``; ``orbax/`` defines them."""

from ..orbax.validation_job import ValidationJob as ValidationJob
from ..orbax.validation_report import ValidationSingleJobResult as ValidationSingleJobResult
