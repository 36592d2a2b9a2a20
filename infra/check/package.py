#!/usr/bin/env python3
"""Makes what is released for a kind of processors: three zips, plain CloudFormation that refers to them, the licences of
all that is linked, and the hashes of these files, in target/package.

    infra/check/package.py --architecture arm64          also: make package ARCHITECTURE=arm64

The template is the translation of infra/template.yaml: it needs no SAM, so Terraform and CDK can include it (plain.py).
The zips are named by their contents and have no times in them: the same programs are the same files, and CloudFormation
makes a new version of a function only if its program changed.

Each step prints its name and its time to standard error. The licences are first, since they take minutes and the builds
take half an hour or more.
"""

import argparse
import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import deploy
import plain
import template

OUT = template.CHECKOUT / "target/package"
ABOUT = template.CHECKOUT / "target/tools/bin/cargo-about"
# For one program. It takes about a minute on two cores.
MAX_LICENCE_SECONDS = 900


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--architecture", choices=sorted(deploy.TARGETS), default="arm64")
    parser.add_argument("--venv", type=Path, default=template.CHECKOUT / ".venv")
    arguments = parser.parse_args()
    # Starts this script again with the libraries that translate the template.
    template.enter(arguments.venv.absolute(), Path(__file__).resolve())

    version = version_of_workspace()
    folder = OUT / f"symdepot-{version}-{arguments.architecture}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # cargo-about reads the sources of all crates, and needs no network for that.
    with step("sources of the dependencies"):
        subprocess.run(["cargo", "fetch", "--locked", "--quiet"], check=True, cwd=template.CHECKOUT)
    for program in deploy.PROGRAMS.values():
        with step(f"licences of {program}"):
            licences(program, arguments.architecture, folder / f"LICENSES-{program}.html")
    packages = deploy.build(arguments.architecture)
    checks = template.Checks()
    deploy.check_packages(checks, arguments.architecture, packages)
    if checks.exit_code() != 0:
        checks.report("the packages")
        return 1
    with step("zips"):
        zips = {name: pack(package / "bootstrap", folder, deploy.PROGRAMS[name]).name for name, package in packages.items()}
    with step("plain CloudFormation"):
        source, _ = template.load(template.TEMPLATE.read_text())
        made = plain.plain_template(source, arguments.architecture, zips)
        plain.check(checks, made, source, arguments.architecture, zips)
        plain.check_lint(checks, made, arguments.architecture)
        (folder / "template.json").write_text(json.dumps(made, indent=1) + "\n")
    if checks.exit_code() != 0:
        checks.report("the packages and their template")
        return 1
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        shutil.copy(template.CHECKOUT / name, folder)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10}  {path.relative_to(template.CHECKOUT)}")
    return 0


@contextlib.contextmanager
def step(name):
    """Prints what is done, and how long it took."""
    began = time.monotonic()
    print(f"{name} …", file=sys.stderr, flush=True)
    yield
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def version_of_workspace():
    metadata = subprocess.run(["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"], check=True, capture_output=True, text=True, cwd=template.CHECKOUT).stdout
    [version] = {package["version"] for package in json.loads(metadata)["packages"]}
    return version


def pack(program, folder, name):
    """Writes a zip with the program, named by its contents, and returns its path."""
    contents = program.read_bytes()
    path = folder / f"{name}-{hashlib.sha256(contents).hexdigest()[:16]}.zip"
    entry = zipfile.ZipInfo("bootstrap", date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100755 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, contents, compresslevel=9)
    return path


def licences(program, architecture, path):
    """Writes the licences of all that is linked to a program. All files of all crates are read for their texts."""
    command = [
        str(ABOUT), "-L", "info", "generate", "--fail", "--frozen", "--config", str(template.HERE / "about.toml"),
        "--manifest-path", str(template.CHECKOUT / f"functions/{program}/Cargo.toml"),
        "--target", deploy.TARGETS[architecture], "--output-file", str(path), str(template.HERE / "about.hbs"),
    ]
    try:
        subprocess.run(command, check=True, cwd=template.CHECKOUT, stdout=sys.stderr, timeout=MAX_LICENCE_SECONDS)
    except subprocess.TimeoutExpired:
        sys.exit(f"cargo-about did not end in {MAX_LICENCE_SECONDS} s: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
