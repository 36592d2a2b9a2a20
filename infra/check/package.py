#!/usr/bin/env python3
"""Makes what is released for a kind of processors: three zips, plain CloudFormation that refers to them, the licences of
all that is linked, and the hashes of these files, in target/package.

    infra/check/package.py --architecture arm64          also: make package ARCHITECTURE=arm64

The template is the translation of infra/template.yaml: it needs no SAM, so Terraform and CDK can include it. The zips
are named by their contents and have no times in them: the same programs are the same files, and CloudFormation makes a
new version of a function only if its program changed.
"""

import argparse
import copy
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import deploy
import template

OUT = template.CHECKOUT / "target/package"
ABOUT = template.CHECKOUT / "target/tools/bin/cargo-about"
# A template is passed as text up to this size, and otherwise by way of S3. Source: quotas of CloudFormation.
MAX_TEMPLATE_BYTES = 1_000_000


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
    packages = deploy.build(arguments.architecture)
    checks = template.Checks()
    deploy.check_packages(checks, arguments.architecture, packages)
    if checks.exit_code() != 0:
        checks.report("the packages")
        return 1

    zips = {name: pack(package / "bootstrap", folder, deploy.PROGRAMS[name]) for name, package in packages.items()}
    source, _ = template.load(template.TEMPLATE.read_text())
    plain = plain_template(source, arguments.architecture, zips)
    problems = template.lint(plain, ignored=LINT_IGNORED)
    if problems:
        sys.exit("\n".join(problems))
    text = json.dumps(plain, indent=1) + "\n"
    if len(text) > MAX_TEMPLATE_BYTES:
        sys.exit(f"the template has {len(text)} bytes, and may have {MAX_TEMPLATE_BYTES}")
    (folder / "template.json").write_text(text)
    for program in deploy.PROGRAMS.values():
        licences(program, arguments.architecture, folder / f"LICENSES-{program}.html")
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        shutil.copy(template.CHECKOUT / name, folder)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10}  {path.relative_to(template.CHECKOUT)}")
    return 0


# As in template.py: SAM has used it by now.
LINT_IGNORED = {
    ("W2001", "Deployment"): "SAM uses it when it translates",
    ("W1028", "DailyCostAlarm"): "the programs are for one kind of processors, so the price of the others is unused",
}


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


def plain_template(source, architecture, zips):
    """Returns the template as plain CloudFormation, whose functions are in the bucket of the parameter CodeBucket."""
    source = copy.deepcopy(source)
    source["Parameters"]["Architecture"].update(Default=architecture, AllowedValues=[architecture])
    # The id of a version contains a hash of this address: it changes with the program.
    plain = template.translate(source, {name: f"s3://packages/{path.name}" for name, path in zips.items()})
    plain["Parameters"] |= {
        "CodeBucket": {"Type": "String", "AllowedPattern": "[a-z0-9][a-z0-9.-]+", "Description": "The bucket in this region that the zips were copied to"},
        "CodePrefix": {"Type": "String", "Default": "", "Description": "What is before the names of the zips in that bucket, for example symdepot/"},
    }
    for name, path in zips.items():
        plain["Resources"][name]["Properties"]["Code"] = {
            "S3Bucket": {"Ref": "CodeBucket"},
            "S3Key": {"Fn::Sub": f"${{CodePrefix}}{path.name}"},
        }
    return plain


def licences(program, architecture, path):
    """Writes the licences of all that is linked to a program."""
    command = [
        str(ABOUT), "generate", "--fail", "--locked", "--config", str(template.HERE / "about.toml"),
        "--manifest-path", str(template.CHECKOUT / f"functions/{program}/Cargo.toml"),
        "--target", deploy.TARGETS[architecture], "--output-file", str(path), str(template.HERE / "about.hbs"),
    ]
    subprocess.run(command, check=True, cwd=template.CHECKOUT)


if __name__ == "__main__":
    sys.exit(main())
