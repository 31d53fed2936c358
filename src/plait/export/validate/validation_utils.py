"""The public name of Orbax Export's ``validate.validation_utils``; ``orbax/`` defines it."""

from ..orbax.validation_report import Status as Status
