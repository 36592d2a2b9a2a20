#!/usr/bin/env python3
"""Runs checkov, a scanner for insecure settings, on the translation of infra/template.yaml.

    infra/check/template.py --print | infra/check/scan.py

Each finding that is accepted is listed below with its reason. A finding that is not listed fails, and so does a listed
one that no longer occurs. Runs with the libraries of scan-requirements.txt (`infra/doctor venv scan`).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FUNCTIONS = ["SymbolicateFunction", "DeriveFunction", "PruneFunction"]
BUCKETS = ["UploadsBucket", "CachesBucket", "AttachmentsBucket"]
QUEUES = ["EagerQueue", "UploadsQueue", "RefreshQueue", "DeadLetters"]

# The rule, where it is accepted, and why.
ACCEPTED = [
    ("CKV_AWS_18", BUCKETS, "access logs of a bucket cost a write for each read of a cache; the API logs who asked for what"),
    ("CKV_AWS_21", ["UploadsBucket"], "a parameter (UploadVersions), which the scanner does not follow"),
    ("CKV_AWS_21", ["CachesBucket", "AttachmentsBucket"], "blobs are never overwritten, and can be derived again; attachments live for a day"),
    ("CKV_AWS_26", ["Alarms"], "messages name an alarm and nothing else; CloudWatch cannot send to a topic with the key of AWS"),
    ("CKV_AWS_27", QUEUES, "SQS encrypts with its own keys (SqsManagedSseEnabled), which the scanner does not know"),
    ("CKV_AWS_115", ["SymbolicateFunction"], "a new account cannot reserve anything; Reserve=builds keeps runs for derive and prune, so that requests cannot take them"),
    ("CKV_AWS_116", FUNCTIONS, "the queues have a dead-letter queue, requests have a client, and a failed run of prune has an alarm"),
    ("CKV_AWS_119", ["RecordsTable"], "a parameter (KmsKey), which the scanner does not follow"),
    ("CKV_AWS_173", FUNCTIONS, "the environment has names of secrets, not secrets"),
]


def main():
    accepted = {(rule, name): reason for rule, names, reason in ACCEPTED for name in names}
    with tempfile.TemporaryDirectory() as folder:
        translated = Path(folder) / "template.json"
        translated.write_text(sys.stdin.read())
        scanner = [str(Path(sys.executable).with_name("checkov")), "--framework", "cloudformation", "--skip-download", "--compact", "--output", "json", "--file", translated.name]
        scanned = subprocess.run(scanner, cwd=folder, capture_output=True, text=True)
    try:
        results = json.loads(scanned.stdout)
        found = {(finding["check_id"], finding["resource"].split(".")[-1]): finding["check_name"] for finding in results["results"]["failed_checks"]}
        passed = results["summary"]["passed"]
    except (json.JSONDecodeError, KeyError, TypeError):
        sys.exit(f"checkov failed ({scanned.returncode}):\n{scanned.stdout[-2000:]}\n{scanned.stderr[-2000:]}")
    for (rule, name), what in sorted(found.items()):
        reason = accepted.get((rule, name))
        print(f"{'ok  ' if reason else 'FAIL'} {rule} {name}: {reason or what}")
    unused = sorted(accepted.keys() - found.keys())
    for rule, name in unused:
        print(f"FAIL {rule} {name}: is accepted, but not found")
    new = found.keys() - accepted.keys()
    print(f"\n{passed} rules passed, {len(found)} findings, {len(new)} not accepted, {len(unused)} accepted but not found")
    return 1 if new or unused or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
