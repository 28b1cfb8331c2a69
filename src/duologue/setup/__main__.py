"""`python -m duologue.setup`: the same set-up as `duologue setup`, without the command line's other parts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from duologue.setup import SetupError, check_setup, choose_progress, default_models_dir, run_setup


def main() -> int:
    """Fill (or, with `--check`, only check) the models folder; 0 when it is complete, else 1."""
    parser = argparse.ArgumentParser(prog="duologue setup", description="Fetch the pinned model files.")
    parser.add_argument("--models", type=Path, default=default_models_dir(), help="folder (%(default)s)")
    parser.add_argument("--check", action="store_true", help="only say what is missing; fetch nothing")
    options = parser.parse_args()
    if options.check:
        missing = check_setup(options.models)
        for entry in missing:
            print(f"{entry.weight.name}: {entry.reason}", file=sys.stderr)
        return 1 if missing else 0
    try:
        run_setup(options.models, progress=choose_progress(sys.stderr))
    except SetupError as error:
        print(f"duologue setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; type `duologue setup` to go on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
