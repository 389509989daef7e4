"""`python -m limelight`, so that `torchrun -m limelight train ...` works."""

from limelight.cli import main

main()
