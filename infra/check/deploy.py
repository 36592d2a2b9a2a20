#!/usr/bin/env python3
"""Builds the functions as `make deploy` does, checks what would be deployed, and sends them the events of infra/events.

    infra/check/deploy.py --local-stack target/debug/local-stack [--architecture x86_64 arm64] [--compile arm64]

For each architecture, the SAM CLI builds the three functions with cargo-lambda and zig. Each package must be one program
`bootstrap` for these processors, of at most 12 MB as a zip, that needs no newer C library and no other library than
the runtime `provided.al2023` has. Those for the processors of this machine then run under the Lambda runtime API of
cargo-lambda, with the stores of the local stack, and have to answer every event.

For other processors, nothing is compiled unless --compile says so: a program stands in for cargo, records what the SAM
CLI asks of it, and leaves a small program for these processors, which zig compiles from C.

Needs the tools of deploy-requirements.txt in target/deploy (`infra/doctor venv deploy`), rustup, and readelf.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import template

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
TOOLS = CHECKOUT / "target/deploy/bin"
FOLDER = CHECKOUT / "target/test-deploy"
EVENTS = CHECKOUT / "infra/events"

MAX_ZIP_BYTES = 12_000_000
# Amazon Linux 2023 has glibc 2.34, whose parts these are, and libgcc. Sources: release notes of Amazon Linux 2023; AWS
# Lambda developer guide, "OS-only runtime".
MAX_GLIBC = (2, 34)
LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "arm64": "AArch64"}
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}
HOST = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine())
# Stands in for cargo: it answers what reads only, and in the place of a build it leaves a program of a line of C.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys
recorded, triple = os.environ["STAND_IN_RECORDED"], os.environ["STAND_IN_TRIPLE"]
arguments = sys.argv[1:]
if arguments[:2] != ["lambda", "build"]:
    os.execv(os.environ["STAND_IN_CARGO"], ["cargo", *arguments])
with open(recorded, "a") as file:
    file.write(json.dumps([pathlib.Path.cwd().name, *arguments]) + "\\n")
program = pathlib.Path(os.environ["CARGO_TARGET_DIR"], "lambda", arguments[arguments.index("--bin") + 1], "bootstrap")
program.parent.mkdir(parents=True, exist_ok=True)
source = program.with_suffix(".c")
source.write_text("int main(void) {{ return 0; }}")
subprocess.run(["python-zig", "cc", "-target", triple, "-s", "-o", str(program), str(source)], check=True)
"""
PROGRAMS = {"SymbolicateFunction": "symbolicate", "DeriveFunction": "derive", "PruneFunction": "prune"}


def is_answer_to_a_crash(answer):
    # cargo-lambda hands over the body of a response that is one of API Gateway.
    return answer.get("status") == "completed" and len(answer["stacktraces"]) == 1


def is_refused(answer):
    # cargo-lambda hands over the whole response if its status is that of an error.
    return answer.get("statusCode") == 401


def has_no_failures(answer):
    return answer.get("batchItemFailures") == []


def is_retried(answer):
    # The file of the event is not in the bucket, so S3 cannot be read: the message is delivered again.
    return len(answer.get("batchItemFailures")) == 1


def is_report(answer):
    return answer.get("pass") == 1 and answer.get("failed") == 0


# The events, the functions that receive them, and what is an answer.
ANSWERS = {
    "symbolicate.json": ("SymbolicateFunction", is_answer_to_a_crash),
    "jwt.json": ("SymbolicateFunction", is_answer_to_a_crash),
    "unsigned.json": ("SymbolicateFunction", is_refused),
    "unknown-token.json": ("SymbolicateFunction", is_refused),
    "upload-created.json": ("DeriveFunction", is_retried),
    "upload-removed.json": ("DeriveFunction", has_no_failures),
    "upload-test-event.json": ("DeriveFunction", has_no_failures),
    "queue.json": ("DeriveFunction", has_no_failures),
    "schedule.json": ("PruneFunction", is_report),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--local-stack", type=Path, required=True, help="the program whose stores answer the functions")
    parser.add_argument("--architecture", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS), help="what to build for")
    parser.add_argument("--compile", nargs="*", choices=sorted(TARGETS), default=[], help="what to compile for, besides the processors of this machine")
    arguments = parser.parse_args()
    checks = template.Checks()
    for architecture in arguments.architecture:
        if architecture not in (HOST, *arguments.compile):
            check_packages(checks, architecture, build_by_stand_in(checks, architecture), is_compiled=False)
            print(f"for {architecture}, a program stood in for cargo: `--compile {architecture}` compiles the functions", file=sys.stderr)
            continue
        packages = build(architecture)
        check_packages(checks, architecture, packages)
        if architecture == HOST:
            check_answers(checks, packages, arguments.local_stack)
    if HOST not in arguments.architecture:
        print(f"no events were sent: they need programs for {HOST}", file=sys.stderr)
    checks.report("what is deployed")
    return checks.exit_code()


def environment(**more):
    """The environment of the tools: theirs first in the path, and build folders of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CARGO_BUILD_")}
    return kept | {"PATH": f"{TOOLS}:{os.environ['PATH']}", "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": template.REGIONS[0], "CARGO_TARGET_DIR": str(CHECKOUT / "target/deploy-build"), **more}


def build(architecture, names=tuple(PROGRAMS)):
    """Builds functions one after the other, and returns the folder of each package."""
    subprocess.run(["rustup", "target", "add", TARGETS[architecture]], check=True, stdout=sys.stderr)
    packages = {}
    for name in names:
        command, packages[name] = sam_build(name, architecture)
        watch_build(command, f"{PROGRAMS[name]} for {architecture}", CHECKOUT / "target/deploy-build" / TARGETS[architecture] / "release/.fingerprint")
    return packages


def sam_build(name, architecture):
    """Returns the command that builds a function, and the folder of its package."""
    # `sam build` empties its folder, so each function has its own.
    folder = FOLDER / architecture / PROGRAMS[name]
    command = ["sam", "build", name, "--template", "infra/template.yaml", "--build-dir", str(folder), "--parameter-overrides", f"Architecture={architecture}"]
    return command, folder / name


def build_by_stand_in(checks, architecture):
    """Lets the SAM CLI build each function with a program in the place of cargo, and checks what it asks of it."""
    folder = FOLDER / "stand-in"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cargo, recorded = folder / "cargo", folder / "recorded.jsonl"
    cargo.write_text(STAND_IN)
    cargo.chmod(0o755)
    # Zig's name of the processors, with the C library that programs are linked with.
    triple = ".".join([TARGETS[architecture].replace("-unknown", ""), *map(str, MAX_GLIBC)])
    given = environment(
        CARGO_TARGET_DIR=str(folder / "target"), STAND_IN_RECORDED=str(recorded), STAND_IN_TRIPLE=triple,
        STAND_IN_CARGO=shutil.which("cargo"),
    )
    given["PATH"] = f"{folder}:{given['PATH']}"
    packages = {}
    for name, program in PROGRAMS.items():
        command, packages[name] = sam_build(name, architecture)
        subprocess.run(command, cwd=CHECKOUT, env=given, stdout=sys.stderr, check=True)
        last = json.loads(recorded.read_text().splitlines()[-1])
        asked = [program, "lambda", "build", "--release", *(["--arm64"] if architecture == "arm64" else []), "--bin", program]
        checks.that(f"{program}, {architecture}", "the SAM CLI asks cargo for it", last == asked, " ".join(last))
    return packages


def watch_build(command, what, compiled):
    """Runs a build, which prints nothing until it ends, and prints each minute what it has compiled."""
    began = time.monotonic()
    print(f"building {what}", file=sys.stderr, flush=True)
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environment(), stdout=sys.stderr)
    try:
        while True:
            try:
                code = process.wait(timeout=60)
                break
            except subprocess.TimeoutExpired:
                crates = sorted(compiled.glob("*"), key=lambda path: path.stat().st_mtime)
                last = crates[-1].name.rpartition("-")[0] if crates else "nothing"
                print(f"  {what}: {time.monotonic() - began:.0f} s, {len(crates)} crates begun, the last is {last}", file=sys.stderr, flush=True)
    finally:
        process.terminate()
        process.wait()
    if code != 0:
        sys.exit(f"building {what} failed ({code}): {' '.join(command)}")
    print(f"built {what} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def readelf(program, *options):
    return subprocess.run(["readelf", "--wide", *options, str(program)], check=True, capture_output=True, text=True).stdout


def check_packages(checks, architecture, packages, is_compiled=True):
    """Checks each package, and what is in it if it was compiled from our code."""
    for name, folder in packages.items():
        topic = f"{PROGRAMS[name]}, {architecture}"
        files = sorted(path.name for path in folder.rglob("*") if path.is_file())
        checks.that(topic, "the package is one program", files == ["bootstrap"], ", ".join(files))
        if files != ["bootstrap"]:
            continue
        program = folder / "bootstrap"
        checks.that(topic, "it may be executed", os.access(program, os.X_OK))
        machine = re.search(r"Machine: +(.+)", readelf(program, "--file-header"))[1]
        checks.that(topic, "it is for these processors", machine == MACHINES[architecture], machine)
        if not is_compiled:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            packed = Path(temporary) / "package.zip"
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.write(program, "bootstrap")
            size = packed.stat().st_size
        checks.that(topic, f"the zip has at most {MAX_ZIP_BYTES / 1e6:.0f} MB", size <= MAX_ZIP_BYTES, f"{size / 1e6:.1f} MB, {program.stat().st_size / 1e6:.1f} MB unpacked")
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf(program, "--dynamic")))
        checks.that(topic, "it needs libraries of the runtime only", needed and needed <= LIBRARIES, ", ".join(sorted(needed)))
        versions = {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([\d.]+)", readelf(program, "--version-info"))}
        newest = max(versions, default=None)
        checks.that(topic, "its C library is in the runtime", newest is not None and newest <= MAX_GLIBC, ".".join(map(str, newest or ())))
        sections = readelf(program, "--section-headers")
        checks.that(topic, "it is stripped", ".symtab" not in sections and ".debug_" not in sections)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(condition, process, what):
    until = time.monotonic() + 60
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(f"{what} did not start")
        time.sleep(0.05)


def accepts(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def settings(function, stack, addresses):
    """Returns the variables of a function, with the names of the local stack's resources."""
    named = {**addresses["buckets"], **addresses["tables"], **addresses["queues"], "AWS::StackName": "test-deploy"}
    variables = {}
    for name, value in stack.properties(function)["Environment"]["Variables"].items():
        value = stack.value(value)
        if isinstance(value, dict) and "Ref" in value:
            value = named[value["Ref"]]
        variables[name] = str(value)
    return variables


def check_answers(checks, packages, local_stack):
    """Sends each event to the program that was built, by way of the runtime API of cargo-lambda."""
    data = FOLDER / "data"
    shutil.rmtree(data, ignore_errors=True)
    programs = FOLDER / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir(parents=True)
    for name, program in PROGRAMS.items():
        shutil.copy(packages[name] / "bootstrap", programs / program)
    printed = subprocess.run([sys.executable, str(HERE / "template.py"), "--print"], check=True, capture_output=True, text=True).stdout
    translated = template.Stack(json.loads(printed))
    port = free_port()
    stack = [str(local_stack.absolute()), "--template", "infra/template.yaml", "--stack-name", "test-deploy", "--functions", str(programs), "--port", "0", "--data", str(data)]
    watch = ["cargo", "lambda", "watch", "--only-lambda-apis", "--invoke-address", "127.0.0.1", "--invoke-port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as processes:
        stores = processes.enter_context(running(stack, cwd=CHECKOUT, stdout=subprocess.DEVNULL))
        wait_for((data / "stack.json").exists, stores, "the local stack")
        addresses = json.loads((data / "stack.json").read_text())
        api = processes.enter_context(running(watch, cwd=CHECKOUT / "functions/prune", env=environment(), **quiet))
        wait_for(lambda: accepts(port), api, "cargo lambda watch")
        logs = {}
        for name, folder in packages.items():
            logs[name] = FOLDER / f"{PROGRAMS[name]}.log"
            function = {
                **settings(name, translated, addresses),
                "AWS_LAMBDA_RUNTIME_API": f"http://127.0.0.1:{port}/.rt/{PROGRAMS[name]}",
                "AWS_LAMBDA_FUNCTION_NAME": PROGRAMS[name], "AWS_LAMBDA_FUNCTION_VERSION": "1", "_HANDLER": "bootstrap",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(translated.value(translated.properties(name)["MemorySize"])),
                "AWS_LAMBDA_LOG_GROUP_NAME": "logs", "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
                "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
                **{f"AWS_ENDPOINT_URL_{service.upper()}": addresses[service] for service in ("s3", "dynamodb", "sqs")},
                "PATH": "/usr/bin:/bin", "TMPDIR": str(data),
            }
            log = processes.enter_context(open(logs[name], "wb"))
            processes.enter_context(running([str(folder / "bootstrap")], env=function, stdout=log, stderr=log))
        given = sorted(path.name for path in EVENTS.glob("*.json"))
        checks.that("events", "every event of infra/events is sent", given == sorted(ANSWERS), ", ".join(given))
        for event, (name, is_answer) in ANSWERS.items():
            url = f"http://127.0.0.1:{port}/2015-03-31/functions/{PROGRAMS[name]}/invocations"
            request = urllib.request.Request(url, data=(EVENTS / event).read_bytes(), headers={"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    text = response.read()
            except urllib.error.HTTPError as error:
                text = error.read()
            except OSError as error:
                text = str(error).encode()
            try:
                right = is_answer(json.loads(text))
            except (AttributeError, ValueError):
                right = False
            checks.that("events", f"{PROGRAMS[name]} answers {event}", right, text.decode(errors="replace")[:160])
        for name, log in logs.items():
            failed = [line for line in log.read_text().splitlines() if "panicked" in line or ('"level":"ERROR"' in line and "message will be retried" not in line)]
            checks.all("events", f"{PROGRAMS[name]} logs no other error", failed)


if __name__ == "__main__":
    sys.exit(main())
