"""The name of Orbax Export's ``validate.validation_manager``; ``orbax/`` defines it."""

from ..orbax.validation import ValidationManager as ValidationManager
