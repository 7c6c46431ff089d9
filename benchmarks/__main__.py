"""Runs all or the named benchmarks: `python -m benchmarks [NAME ...] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import machine

# Benchmark -> its minutes on two cores, and its arguments: fewer repeats than by default, so that
# all benchmarks take 20 minutes at most.
ONE, TWO, THREE = (("--repeats", str(count)) for count in (1, 2, 3))
BENCHMARKS: dict[str, tuple[float, tuple[str, ...]]] = {
    "monitored_step": (1.3, ("--repeats", "7")),
    "start_up": (3.6, ONE),
    "restoration": (2.0, ("--scale", "0.5")),
    "warm_start": (1.3, THREE),
    "scale": (0.1, ()),
    "memory": (1.9, ("--models", "ResNet-50", "--steps", "10000", "--trials", "20")),
    "large": (0.2, ("--gigabytes", "0.5")),
    "tracking": (0.9, (*ONE, "--points", "10000")),
    "real_model": (0.8, ONE),
    "keras_fit": (1.3, TWO),
    "devices": (0.4, THREE),
    "sweeps": (3.9, (*ONE, "--steps", "400")),
    "caller_thread": (0.3, ("--repeats", "15")),
    "cluster": (1.2, ()),
    "maps": (0.6, ()),
    "values": (1.5, ()),
}


def main() -> int:
    """Runs them one after the other; returns 1 when one misses a limit, 2 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="the results")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    names = args.names or list(BENCHMARKS)
    print(machine())
    print(f"about {sum(BENCHMARKS[name][0] for name in names):.0f} minutes", flush=True)
    results: dict[str, object] = {"machine": machine()}
    worst = 0
    for name in names:
        print(f"\n{name}", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file)]
            with tempfile.TemporaryFile("w+") as errors:  # What libraries write too.
                command += BENCHMARKS[name][1]
                code = subprocess.run(command, stderr=errors, check=False).returncode
                if file.exists():
                    results[name] = json.loads(file.read_text())["results"]
                else:
                    code = 2
                    errors.seek(0)
                    print(errors.read(), f"{name} FAILED", sep="\n")
        worst = max(worst, code)
        print(f"{name} took {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        # After each benchmark, so that an interruption loses only the current one.
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {args.json}; compare two: python -m benchmarks.compare OLD NEW")
    return worst


if __name__ == "__main__":
    sys.exit(main())
