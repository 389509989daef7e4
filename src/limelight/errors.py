"""The errors that a caller can do something about."""

from __future__ import annotations


class LimelightError(ValueError):
    """An error that the caller can fix: the message names what was found and what was expected."""

    def __str__(self) -> str:
        """One line, even where the message quotes a value of several lines, such as a tensor."""
        return " ".join(line.strip() for line in super().__str__().splitlines())


class ShapeError(LimelightError):
    """A tensor has the wrong rank or a size that does not fit the others."""


class DtypeError(LimelightError):
    """A tensor has an element type that the operation does not take."""


class DeviceError(LimelightError):
    """Tensors that must be on one device are on different ones."""


class OptionError(LimelightError):
    """An option is outside the values it may take."""


class UnavailableError(LimelightError):
    """An implementation or an optional package was requested by name and cannot serve."""


class FileError(LimelightError):
    """A file is missing, damaged, of another format, or cannot be written."""
