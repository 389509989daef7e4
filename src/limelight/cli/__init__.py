"""The command line: parsing and printing only."""

from __future__ import annotations


def main() -> None:
    """Run `limelight`; an error that the user can fix is one line, without a traceback."""
    import sys

    from limelight.ascii_fallback import use_ascii_fallback
    from limelight.cli.app import app
    from limelight.cli.streams import exit_on, one_line

    use_ascii_fallback()
    try:
        with exit_on("SIGTERM"):
            app()
    except (ValueError, OSError) as error:
        from limelight.errors import LimelightError

        if isinstance(error, OSError):
            prefix = f"{error.filename}: " if error.filename is not None else ""
            message = f"{prefix}{error.strerror or error}"
        elif isinstance(error, LimelightError):
            message = str(error)
        else:
            raise
        print(f"limelight: {one_line(message)}", file=sys.stderr)
        raise SystemExit(2) from None


__all__ = ["main"]
