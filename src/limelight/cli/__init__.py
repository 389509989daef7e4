"""The command line: parsing and printing only."""

from __future__ import annotations


def main() -> None:
    """Run `limelight`; whatever a person can mend is said in one line, without a traceback."""
    import errno
    import sys

    from limelight.cli.app import app
    from limelight.cli.streams import ended_by, one_line
    from limelight.printing import print_what_can_be_printed

    print_what_can_be_printed()
    try:
        with ended_by("SIGTERM"):
            try:
                app()
            finally:
                # what is still to be printed fails here, where it can be said, not at exit
                _flush()
    except (ValueError, OSError) as error:
        from limelight.errors import LimelightError

        if isinstance(error, OSError):
            named = f"{error.filename}: " if error.filename is not None else ""
            message = f"{named}{error.strerror or error}"
            if error.filename is None and error.errno == errno.ENOSPC:
                _forget_output()
                message = f"cannot print: {message}"
        elif isinstance(error, LimelightError):
            message = str(error)
        else:
            raise
        print(f"limelight: {one_line(message)}", file=sys.stderr)
        raise SystemExit(2) from None


def _flush() -> None:
    """Print what is still held back; whoever has closed the pipe has seen enough."""
    import sys

    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    """Nothing more can be printed: without this Python tries again at exit and complains."""
    import os
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["main"]
