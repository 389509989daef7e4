"""The command line: parsing and printing only."""

from __future__ import annotations


def main() -> None:
    """Run `limelight`; whatever a person can mend is said in one line, without a traceback."""
    import sys

    from limelight.cli.app import app
    from limelight.printing import print_what_can_be_printed

    print_what_can_be_printed()
    try:
        app()
    except ValueError as error:
        from limelight.errors import LimelightError

        if not isinstance(error, LimelightError):
            raise
        print(f"limelight: {error}", file=sys.stderr)
        raise SystemExit(2) from None


__all__ = ["main"]
