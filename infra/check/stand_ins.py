#!/usr/bin/env python3
"""Tests `make deploy`, `make remove` and `infra/backup` without an account: programs that record their arguments and
answer from a list stand in for `aws`, `sam` and `rustup`, and a server that does the same for S3 and DynamoDB.

    infra/check/stand_ins.py        also: make check-deploy

Each test of a deployment runs make in a copy of the Makefile and of infra, and compares the recorded commands, in their
order, the exit code, and what is printed. What infra/backup copies between buckets is tested on the local stack
(tests/tests/e2e/backup.rs); here, what it does after an error.
"""

import argparse
import contextlib
import http.server
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True

import template  # noqa: E402 (no files are left in the checkout)

CHECKOUT = template.CHECKOUT
# What the scripts need besides the stand-ins.
SYSTEM = ["bash", "make", "env", "awk", "sed", "grep", "cat", "cmp", "dirname", "basename", "python3", "sort", "head", "cut", "tr", "cksum"]
# What stands for a space in an argument, so that one argument is not taken for several.
SPACE = "␣"
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, re, sys
folder = pathlib.Path(__file__).resolve().parent.parent.parent
command = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
with open(folder / "recorded.jsonl", "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
for pattern, code, printed, complaint in json.loads((folder / "answers.json").read_text()):
    if re.search(pattern, command):
        sys.stdout.write(printed)
        sys.stderr.write(complaint)
        sys.exit(code)
sys.exit(f"the test expects no {{command}}")
"""

IDENTITY = ["^aws sts get-caller-identity", 0, "111122223333\n", ""]
NO_STACK = ["^aws cloudformation describe-stacks", 254, "", "An error occurred (ValidationError) when calling the DescribeStacks operation: Stack with id crashes does not exist\n"]
# What the account runs at a time, and how much of it is not reserved.
LIMIT = ["^aws lambda get-account-settings", 0, "1000\t964\n", ""]
NEW_ACCOUNT = ["^aws lambda get-account-settings", 0, "10\t10\n", ""]
# `aws configure get region` prints the region of the profile, or ends with 1.
PROFILE = ["^aws configure get region$", 0, "us-west-2\n", ""]
NO_PROFILE = ["^aws configure get region$", 1, "", ""]
# The uploads of a removed stack, whose bucket stays.
NO_UPLOADS = ["^aws s3api head-bucket", 254, "", "An error occurred (404) when calling the HeadBucket operation: Not Found\n"]
UPLOADS_STAYED = ["^aws s3api head-bucket", 0, "{}\n", ""]
TOOLS = [LIMIT, ["^rustup target add", 0, "", ""], ["^sam ", 0, "", ""]]


def status(of):
    return ["^aws cloudformation describe-stacks", 0, f"{of}\n", ""]


def parameters(architecture="arm64", reserve="none", **others):
    """Answers with the parameters of a stack, of which an earlier template lacked some."""
    lines = [f"{name}\t{value}\n" for name, value in {"Architecture": architecture, "Reserve": reserve, **others}.items()]
    return ["describe-stacks .*Stacks\\[0\\]\\.Parameters", 0, "".join(lines), ""]


# Whether a stack is protected from its removal.
UNPROTECTED = ["EnableTerminationProtection", 0, "False\n", ""]
MAPPINGS = ["^aws cloudformation describe-stack-resources .*EventSourceMapping", 0, "DeriveFunctionEager\te-1\nDeriveFunctionRefresh\te-2\n", ""]
NO_MAPPINGS = ["^aws cloudformation describe-stack-resources .*EventSourceMapping", 0, "", ""]
STOPS = ["^aws lambda update-event-source-mapping", 0, "{}\n", ""]
BUCKETS = ["^aws cloudformation describe-stack-resources .*S3", 0,
           "UploadsBucket\tcrashes-uploads-1\nCachesBucket\tcrashes-caches-1\nAttachmentsBucket\tcrashes-attachments-1\n", ""]
LOGS = ["^aws cloudformation describe-stack-resources .*LogGroup", 0, "Logs\tcrashes-Logs-1\nAccessLogs\t/aws/vendedlogs/crashes-access-1\n", ""]
NO_LOGS = ["^aws cloudformation describe-stack-resources .*LogGroup", 0, "", ""]
EMPTIES = [["^aws s3api head-bucket", 0, "", ""], ["^aws s3 rm", 0, "", ""]]
RUNNING = [IDENTITY, UNPROTECTED, parameters(), status("UPDATE_COMPLETE"), MAPPINGS, STOPS, BUCKETS, LOGS, *EMPTIES, *TOOLS]

# The region of the environment of the tests, unless they set another one.
REGION = "eu-central-1"
ASKS = [f"aws sts get-caller-identity --query Account --output text --region {REGION}",
        f"aws cloudformation describe-stacks --stack-name crashes --region {REGION} --query Stacks[0].StackStatus --output text"]
BUCKET = re.search(r'^  UploadsBucket:$.*?BucketName: !Sub "(.+?)"', template.TEMPLATE.read_text(), re.DOTALL | re.MULTILINE)[1]
for part, value in (("StackName", "crashes"), ("AccountId", "111122223333"), ("Region", REGION)):
    BUCKET = BUCKET.replace(f"${{AWS::{part}}}", value)
ASKS_UPLOADS = f"aws s3api head-bucket --bucket {BUCKET} --region {REGION}"
# What is asked before a first deployment.
ASKS_FIRST = [*ASKS, ASKS_UPLOADS]
ASKS_PROTECTION = f"aws cloudformation describe-stacks --stack-name crashes --region {REGION} --query Stacks[0].EnableTerminationProtection --output text"
ASKS_PARAMETERS = (
    f"aws cloudformation describe-stacks --stack-name crashes --region {REGION} --output text "
    "--query Stacks[0].Parameters[].[ParameterKey,ParameterValue]"
)
LISTS_MAPPINGS, LISTS_BUCKETS, LISTS_LOGS = (
    f"aws cloudformation describe-stack-resources --stack-name crashes --region {REGION} --output text --query StackResources[?ResourceType=='{kind}'␣&&␣ResourceStatus!='DELETE_COMPLETE'].[LogicalResourceId,PhysicalResourceId]"
    for kind in ("AWS::Lambda::EventSourceMapping", "AWS::S3::Bucket", "AWS::Logs::LogGroup")
)
# What is known before anything is changed.
LISTS = [ASKS_PROTECTION, LISTS_MAPPINGS, LISTS_BUCKETS, LISTS_LOGS]
ASKS_LIMIT = f"aws lambda get-account-settings --query AccountLimit.[ConcurrentExecutions,UnreservedConcurrentExecutions] --output text --region {REGION}"
# What is asked before an update.
ASKS_ALL = [*ASKS, ASKS_PARAMETERS, ASKS_LIMIT]
# Secrets in both services, which functions read.
OLD_SECRET, OTHER_SECRET = (f"arn:aws:secretsmanager:{REGION}:111122223333:secret:{name}" for name in ("old-AbCdEf", "other-AbCdEf"))
NEW_SECRET = f"arn:aws:ssm:{REGION}:111122223333:parameter/new"
# What is chosen if it is not given: the processors of the stack, and the limit of the account.
ARM, CONCURRENCY = "Architecture=arm64", "AccountConcurrency=964"
ASKS_PROFILE = "aws configure get region"


def checksum(*parameters):
    """Returns what is passed as Restart with these parameters: the first number that `cksum` prints."""
    given = "".join(f"{parameter}\n" for parameter in parameters or [""]).replace(SPACE, " ")
    return subprocess.run(["cksum"], input=given, capture_output=True, text=True, check=True).stdout.split()[0]


def builds(*parameters, target="aarch64-unknown-linux-gnu", restart=None, further="", former=()):
    """Returns the commands that build and deploy with these parameters, with those of former references, which restart
    nothing, and with further arguments of `sam deploy`."""
    chosen = " ".join(["--parameter-overrides", *parameters, *([] if restart else [f"Restart={checksum(*parameters)}"]), *former])
    return [
        f"rustup target add {target}",
        f"sam build --template infra/template.yaml --region {REGION} {chosen}",
        f"sam deploy --stack-name crashes --region {REGION} --resolve-s3 --capabilities CAPABILITY_IAM --no-fail-on-empty-changeset {further}{chosen}",
    ]


# Without parameters, those of an account that is not new.
DEPLOYS = [ASKS_LIMIT, *builds(ARM, CONCURRENCY)]
UPDATES = [*ASKS, ASKS_PARAMETERS, *DEPLOYS]
DELETES = f"sam delete --stack-name crashes --region {REGION} --no-prompts"


def emptying(name):
    return [f"aws s3api head-bucket --bucket {name} --region {REGION}", f"aws s3 rm s3://{name} --recursive --quiet --region {REGION}"]


STOPPING = [f"aws lambda update-event-source-mapping --uuid {mapping} --no-enabled --region {REGION}" for mapping in ("e-1", "e-2")]
REMOVES = [*ASKS, *LISTS, *STOPPING, *emptying("crashes-caches-1"), *emptying("crashes-attachments-1"), DELETES]


def in_region(region, commands):
    """Returns the commands for another region than that of the environment."""
    return [command.replace(f"--region {REGION}", f"--region {region}") for command in commands]


# What is tested: the arguments of make, the answers, the recorded commands, the exit code of the script (make prints it
# and ends with 2), and what is printed. Among the answers, `without NAME` removes a program, and `NAME=VALUE` sets a
# variable of the environment.
TESTS = [
    ("a first deployment asks who pays and what the account runs at a time, then builds and deploys", "deploy STACK=crashes", [IDENTITY, NO_STACK, NO_UPLOADS, *TOOLS], [*ASKS_FIRST, *DEPLOYS], 0,
     "stack crashes, account 111122223333[\\s\\S]*the account runs 1000 functions at a time, 964 of them without a reservation"),
    ("an update does the same, with what the stack has", "deploy STACK=crashes", RUNNING, UPDATES, 0, ""),
    ("each command gets the region", "deploy STACK=crashes REGION=us-west-2", RUNNING, in_region("us-west-2", UPDATES), 0, "account 111122223333, us-west-2"),
    ("without REGION, each command gets the one that only the AWS command line would read", "deploy STACK=crashes", ["AWS_REGION=us-west-2", "AWS_DEFAULT_REGION=us-east-1", *RUNNING],
     in_region("us-west-2", UPDATES), 0, "account 111122223333, us-west-2"),
    ("without AWS_REGION, each command gets AWS_DEFAULT_REGION", "deploy STACK=crashes", ["AWS_REGION=", "AWS_DEFAULT_REGION=us-west-2", *RUNNING], in_region("us-west-2", UPDATES), 0, "us-west-2"),
    ("without both, each command gets the region of the profile", "deploy STACK=crashes", ["AWS_REGION=", PROFILE, *RUNNING], [ASKS_PROFILE, *in_region("us-west-2", UPDATES)], 0, "us-west-2"),
    ("without any region nothing is deployed", "deploy STACK=crashes", ["AWS_REGION=", NO_PROFILE], [ASKS_PROFILE], 1, "the region is not known: choose one with REGION="),
    ("versions that are to start again get the chosen value", "deploy STACK=crashes PARAMETERS='Restart=2'", RUNNING, [*ASKS_ALL, *builds("Restart=2", ARM, CONCURRENCY, restart="2")], 0, ""),
    ("build and deployment get the parameters, and the target is that of the processors",
     "deploy STACK=crashes PARAMETERS='Architecture=x86_64 AlarmAddress=me@example.com'", RUNNING,
     [*ASKS_ALL, *builds("Architecture=x86_64", "AlarmAddress=me@example.com", CONCURRENCY, target="x86_64-unknown-linux-gnu")], 0, ""),
    ("an update keeps the processors of the stack", "deploy STACK=crashes", [parameters(architecture="x86_64"), *RUNNING],
     [*ASKS_ALL, *builds("Architecture=x86_64", CONCURRENCY, target="x86_64-unknown-linux-gnu")], 0, ""),
    ("processors that are chosen are not those of the stack", "deploy STACK=crashes PARAMETERS=Architecture=arm64", [parameters(architecture="x86_64"), *RUNNING], [*ASKS_ALL, *builds(ARM, CONCURRENCY)], 0, ""),
    ("a stack without parameters gets the default processors", "deploy STACK=crashes", [["Stacks\\[0\\]\\.Parameters", 0, "None\n", ""], *RUNNING], UPDATES, 0, ""),
    ("a stack whose parameters are not known is not built", "deploy STACK=crashes", [["Stacks\\[0\\]\\.Parameters", 254, "", "Throttling\n"], *RUNNING], [*ASKS, ASKS_PARAMETERS], 1, "Throttling[\\s\\S]*are not known"),
    ("a limit that is chosen is not asked for", "deploy STACK=crashes PARAMETERS=AccountConcurrency=50", RUNNING, [*ASKS, ASKS_PARAMETERS, *builds("AccountConcurrency=50", ARM)], 0, ""),
    ("a limit that is not known stays as it is", "deploy STACK=crashes", [["^aws lambda", 254, "", "AccessDeniedException\n"], *RUNNING], [*ASKS_ALL, *builds(ARM)], 0,
     "AccessDeniedException[\\s\\S]*AccountConcurrency stays as it is"),
    ("a reservation that a new account refuses is not built", "deploy STACK=crashes PARAMETERS=Reserve=builds", [IDENTITY, NO_STACK, NO_UPLOADS, NEW_ACCOUNT, *TOOLS], [*ASKS_FIRST, ASKS_LIMIT], 1,
     "runs 10 functions at a time, of which 10 are not reserved. Deploy with Reserve=none"),
    ("a reservation that leaves less than 100 is not built, also if the limit is chosen", "deploy STACK=crashes PARAMETERS='Reserve=builds AccountConcurrency=100'",
     [["^aws lambda", 0, "1000\t135\n", ""], *RUNNING], ASKS_ALL, 1, "runs 1000 functions at a time, of which 135 are not reserved"),
    ("a reservation that leaves 100 is built, and counts at once", "deploy STACK=crashes PARAMETERS=Reserve=builds", [["^aws lambda", 0, "1000\t136\n", ""], *RUNNING],
     [*ASKS_ALL, *builds("Reserve=builds", ARM, "AccountConcurrency=100")], 0, ""),
    ("what the stack has reserved is not reserved again", "deploy STACK=crashes PARAMETERS=Reserve=builds", [["^aws lambda", 0, "136\t100\n", ""], parameters(reserve="builds"), *RUNNING],
     [*ASKS_ALL, *builds("Reserve=builds", ARM, "AccountConcurrency=100")], 0, ""),
    ("a reservation that stays counts as before", "deploy STACK=crashes", [["^aws lambda", 0, "136\t100\n", ""], parameters(reserve="builds"), *RUNNING], [*ASKS_ALL, *builds(ARM, "AccountConcurrency=100")], 0, ""),
    ("a reservation that ends is free at once", "deploy STACK=crashes PARAMETERS=Reserve=none", [["^aws lambda", 0, "136\t100\n", ""], parameters(reserve="builds"), *RUNNING],
     [*ASKS_ALL, *builds("Reserve=none", ARM, "AccountConcurrency=136")], 0, ""),
    ("an old version may read the secret that a deployment replaces", f"deploy STACK=crashes PARAMETERS=SourcesSecret={NEW_SECRET}", [parameters(SourcesSecret=OLD_SECRET, FormerSecrets="none"), *RUNNING],
     [*ASKS_ALL, *builds(f"SourcesSecret={NEW_SECRET}", ARM, CONCURRENCY, former=[f"FormerSecrets={OLD_SECRET}"])], 0, f"may also read what this one replaces: FormerSecrets={OLD_SECRET}"),
    ("an old version may read each secret that a deployment replaces or removes", f"deploy STACK=crashes PARAMETERS='SourcesSecret={NEW_SECRET} SourceLinksSecret=none RequestSourcesSecret={OTHER_SECRET} TraceHeadersSecret={NEW_SECRET}'",
     [parameters(SourcesSecret=OLD_SECRET, SourceLinksSecret=OTHER_SECRET, RequestSourcesSecret=OTHER_SECRET, TraceHeadersSecret="none"), *RUNNING],
     [*ASKS_ALL, *builds(f"SourcesSecret={NEW_SECRET}", "SourceLinksSecret=none", f"RequestSourcesSecret={OTHER_SECRET}", f"TraceHeadersSecret={NEW_SECRET}", ARM, CONCURRENCY, former=[f"FormerSecrets={OLD_SECRET},{OTHER_SECRET}"])], 0, ""),
    ("an old version may read the list of sources that a deployment replaces", "deploy STACK=crashes PARAMETERS=SourcesObject=settings/new.json", [parameters(SourcesObject="settings/old, 1.json"), *RUNNING],
     [*ASKS_ALL, *builds("SourcesObject=settings/new.json", ARM, CONCURRENCY, former=["FormerSourcesObject=\"settings/old,␣1.json\""])], 0, ""),
    ("the next deployment no longer lets the functions read what was replaced", "deploy STACK=crashes", [parameters(SourcesSecret=NEW_SECRET, FormerSecrets=OLD_SECRET, SourcesObject="settings/new.json", FormerSourcesObject="settings/old.json"), *RUNNING],
     [*ASKS_ALL, *builds(ARM, CONCURRENCY, former=["FormerSecrets=none", "FormerSourcesObject=none"])], 0, ""),
    ("a secret that stays is not a former one", f"deploy STACK=crashes PARAMETERS=SourcesSecret={OLD_SECRET}", [parameters(SourcesSecret=OLD_SECRET), *RUNNING], [*ASKS_ALL, *builds(f"SourcesSecret={OLD_SECRET}", ARM, CONCURRENCY)], 0, ""),
    ("a first secret replaces none", f"deploy STACK=crashes PARAMETERS=SourcesSecret={NEW_SECRET}", [parameters(SourcesSecret="none"), *RUNNING], [*ASKS_ALL, *builds(f"SourcesSecret={NEW_SECRET}", ARM, CONCURRENCY)], 0, ""),
    ("former secrets that are chosen stay as they are", f"deploy STACK=crashes PARAMETERS='SourcesSecret={NEW_SECRET} FormerSecrets={OTHER_SECRET}'", [parameters(SourcesSecret=OLD_SECRET), *RUNNING],
     [*ASKS_ALL, *builds(f"SourcesSecret={NEW_SECRET}", f"FormerSecrets={OTHER_SECRET}", ARM, CONCURRENCY)], 0, ""),
    ("what was former when an update failed stays so", "deploy STACK=crashes ARGUMENTS=--disable-rollback", [IDENTITY, parameters(SourcesSecret=NEW_SECRET, FormerSecrets=OLD_SECRET), status("UPDATE_FAILED"), *TOOLS],
     [*ASKS_ALL, *builds(ARM, CONCURRENCY, further="--disable-rollback ")], 0, ""),
    ("a secret that is replaced after an update failed is a former one, too", f"deploy STACK=crashes PARAMETERS=SourcesSecret={OTHER_SECRET} ARGUMENTS=--disable-rollback",
     [IDENTITY, parameters(SourcesSecret=NEW_SECRET, FormerSecrets=OLD_SECRET), status("UPDATE_FAILED"), *TOOLS],
     [*ASKS_ALL, *builds(f"SourcesSecret={OTHER_SECRET}", ARM, CONCURRENCY, former=[f"FormerSecrets={NEW_SECRET},{OLD_SECRET}"], further="--disable-rollback ")], 0, ""),
    ("a value keeps its spaces and quotes", """deploy STACK=crashes PARAMETERS='JwtAudience="a \\"b\\" c"'""", RUNNING,
     [*ASKS_ALL, *builds("JwtAudience=\"a␣\\\"b\\\"␣c\"", ARM, CONCURRENCY)], 0, ""),
    ("further arguments are those of sam deploy", "deploy STACK=crashes PARAMETERS=LogDays=90 ARGUMENTS='--tags team=a owner=b --role-arn arn:aws:iam::111122223333:role/deploys'", RUNNING,
     [*ASKS_ALL, *builds("LogDays=90", ARM, CONCURRENCY, further="--tags team=a owner=b --role-arn arn:aws:iam::111122223333:role/deploys ")], 0, ""),
    ("a stack that is chosen twice is refused", "deploy STACK=crashes ARGUMENTS='--stack-name=others'", [], [], 2, "chooses --stack-name itself"),
    ("a region that only sam deploy would get is refused", "deploy STACK=crashes ARGUMENTS='--region us-west-2'", [], [], 2, "chooses --region itself"),
    ("parameters that only sam deploy would get are refused", "deploy STACK=crashes ARGUMENTS='--parameter-overrides LogDays=90'", [], [], 2, "chooses --parameter-overrides itself"),
    ("an account that the checks would not be of is refused", "deploy STACK=crashes ARGUMENTS='--profile prod'", [], [], 2, "set AWS_PROFILE"),
    ("it is refused in one word, too", "deploy STACK=crashes ARGUMENTS='--tags team=a --profile=prod'", [], [], 2, "set AWS_PROFILE"),
    ("a bucket of packages beside that of the SAM CLI is refused", "deploy STACK=crashes ARGUMENTS='--s3-bucket mine'", [], [], 2, "leave --s3-bucket out[\\s\\S]*make package"),
    ("another template than the one that is built is refused", "deploy STACK=crashes ARGUMENTS='--template-file=infra/template.yaml'", [], [], 2, "leave --template-file out"),
    ("it is refused by its short name, too", "deploy STACK=crashes ARGUMENTS='-t infra/template.yaml'", [], [], 2, "leave -t out"),
    ("questions of the SAM CLI are refused", "deploy STACK=crashes ARGUMENTS=--guided", [], [], 2, "leave --guided out"),
    ("a build that fails deploys nothing", "deploy STACK=crashes", [["^sam build", 1, "", "no linker\n"], *RUNNING], UPDATES[:6], 1, "no linker"),
    ("a target that cannot be installed builds nothing", "deploy STACK=crashes", [["^rustup", 1, "", "no such target\n"], *RUNNING], UPDATES[:5], 1, "no such target"),
    ("without credentials nothing is built", "deploy STACK=crashes", [["^aws sts", 253, "", "The SSO session has expired\n"]], ASKS[:1], 1, "expired[\\s\\S]*no valid credentials[\\s\\S]*aws sso login"),
    ("a stack whose creation failed has to be removed first", "deploy STACK=crashes", [IDENTITY, status("ROLLBACK_COMPLETE")], ASKS, 1, "make remove STACK=crashes REGION=eu-central-1"),
    ("a stack whose rollback failed has to be rolled back first", "deploy STACK=crashes", [IDENTITY, status("UPDATE_ROLLBACK_FAILED")], ASKS, 1,
     "aws cloudformation continue-update-rollback --stack-name crashes --region eu-central-1, then deploy again"),
    ("a stack whose update failed has to be rolled back first", "deploy STACK=crashes", [IDENTITY, status("UPDATE_FAILED")], ASKS, 1,
     "aws cloudformation rollback-stack --stack-name crashes --region eu-central-1, then deploy again"),
    ("without rollback, a stack whose update failed is updated", "deploy STACK=crashes ARGUMENTS=--disable-rollback", [IDENTITY, parameters(), status("UPDATE_FAILED"), *TOOLS],
     [*ASKS_ALL, *builds(ARM, CONCURRENCY, further="--disable-rollback ")], 0, ""),
    ("a stack whose first change set failed is created as if there was none", "deploy STACK=crashes", [IDENTITY, status("REVIEW_IN_PROGRESS"), NO_UPLOADS, *TOOLS], [*ASKS_FIRST, *DEPLOYS], 0, ""),
    ("a name whose uploads stayed is not built", "deploy STACK=crashes", [IDENTITY, NO_STACK, UPLOADS_STAYED], ASKS_FIRST, 1,
     f"aws s3 sync s3://{BUCKET} s3://…[\\s\\S]*aws s3 rb s3://{BUCKET} --force"),
    ("a bucket that may not be read does not end the deployment", "deploy STACK=crashes",
     [IDENTITY, NO_STACK, ["^aws s3api head-bucket", 254, "", "An error occurred (403) when calling the HeadBucket operation: Forbidden\n"], *TOOLS], [*ASKS_FIRST, *DEPLOYS], 0,
     f"whether the bucket {BUCKET} exists is not known \\(s3:ListBucket\\): .*403"),
    ("a stack that is changing is not changed", "deploy STACK=crashes", [IDENTITY, status("UPDATE_IN_PROGRESS")], ASKS, 1, "wait until"),
    ("an answer of CloudFormation that is not understood ends the deployment", "deploy STACK=crashes", [IDENTITY, ["describe-stacks", 254, "", "AccessDenied: not authorized\n"]], ASKS, 1, "not known: AccessDenied"),
    ("a name that no bucket can have is refused", "deploy STACK=Crashes", [], [], 2, "lower case letters"),
    ("a name that makes the names of buckets too long is refused", f"deploy STACK={'a' * 21}", [], [], 2, "at most 20 characters"),
    ("a stack without a name is refused", "deploy STACK=", [], [], 2, "usage: infra/deploy STACK"),
    ("a parameter that the template does not have is refused", "deploy STACK=crashes PARAMETERS=MailAddress=me@example.com", [], [], 2, "no parameter 'MailAddress'"),
    ("a resource is no parameter", "deploy STACK=crashes PARAMETERS=UploadsBucket=mine", [], [], 2, "no parameter 'UploadsBucket'"),
    ("a parameter without a value is refused", "deploy STACK=crashes PARAMETERS=Dashboard", [], [], 2, "'Dashboard' is no parameter"),
    ("processors that do not exist are refused", "deploy STACK=crashes PARAMETERS=Architecture=riscv", [], [], 2, "arm64 or x86_64, not 'riscv'"),
    ("without the AWS command line nothing is deployed", "deploy STACK=crashes", ["without aws"], [], 1, "missing: aws"),
    ("without rustup nothing is deployed", "deploy STACK=crashes", ["without rustup"], [], 1, "missing: rustup"),

    ("a removal stops queues, and empties caches and crash files, before it deletes the stack, and keeps the uploads", "remove STACK=crashes", RUNNING, REMOVES, 0, "the uploads stay in crashes-uploads-1[\\s\\S]*Logs stay until they expire[\\s\\S]*delete-log-group --log-group-name /aws/vendedlogs/crashes-access-1"),
    ("each command of a removal gets the region", "remove STACK=crashes REGION=us-west-2", RUNNING, in_region("us-west-2", REMOVES), 0, ""),
    ("a removal empties buckets and deletes the stack in the same region, also if only AWS_REGION is set", "remove STACK=crashes", ["AWS_REGION=us-west-2", *RUNNING], in_region("us-west-2", REMOVES), 0, ""),
    ("a removal takes the region of the profile", "remove STACK=crashes", ["AWS_REGION=", PROFILE, *RUNNING], [ASKS_PROFILE, *in_region("us-west-2", REMOVES)], 0, ""),
    ("without any region nothing is removed", "remove STACK=crashes", ["AWS_REGION=", NO_PROFILE], [ASKS_PROFILE], 1, "the region is not known: choose one with REGION="),
    ("a stack whose creation failed is removed with the buckets that it has", "remove STACK=crashes",
     [IDENTITY, UNPROTECTED, status("ROLLBACK_COMPLETE"), NO_MAPPINGS, NO_LOGS, ["describe-stack-resources", 0, "CachesBucket\tcrashes-caches-1\n", ""], *EMPTIES, *TOOLS],
     [*ASKS, *LISTS, *emptying("crashes-caches-1"), DELETES], 0, "emptying crashes-caches-1"),
    ("a stack whose first change set failed is removed", "remove STACK=crashes", [IDENTITY, UNPROTECTED, status("REVIEW_IN_PROGRESS"), ["describe-stack-resources", 0, "", ""], *TOOLS],
     [*ASKS, *LISTS, DELETES], 0, ""),
    ("a stack without buckets is removed", "remove STACK=crashes", [IDENTITY, UNPROTECTED, status("ROLLBACK_COMPLETE"), ["describe-stack-resources", 0, "", ""], *TOOLS], [*ASKS, *LISTS, DELETES], 0, ""),
    ("a stack that is protected keeps its caches", "remove STACK=crashes", [["EnableTerminationProtection", 0, "True\n", ""], *RUNNING], [*ASKS, ASKS_PROTECTION], 1,
     "update-termination-protection --no-enable-termination-protection --stack-name crashes --region eu-central-1"),
    ("a stack that may be protected keeps its caches", "remove STACK=crashes", [["EnableTerminationProtection", 254, "", "Throttling\n"], *RUNNING], [*ASKS, ASKS_PROTECTION], 1, "Throttling[\\s\\S]*nothing was removed"),
    ("a queue that was stopped by hand, and its mapping removed, is skipped", "remove STACK=crashes",
     [["update-event-source-mapping --uuid e-1", 254, "", "An error occurred (ResourceNotFoundException) when calling the UpdateEventSourceMapping operation\n"], *RUNNING], REMOVES, 0, ""),
    ("a queue that cannot be stopped keeps the stack", "remove STACK=crashes", [["^aws lambda update-event-source-mapping", 254, "", "AccessDeniedException\n"], *RUNNING], [*ASKS, *LISTS, STOPPING[0]], 1,
     "DeriveFunctionEager cannot be stopped: AccessDenied"),
    ("queues that are not known keep the stack", "remove STACK=crashes", [["EventSourceMapping", 254, "", "Throttling\n"], *RUNNING], [*ASKS, *LISTS[:2]], 1, "Throttling[\\s\\S]*nothing was removed"),
    ("a bucket that was removed by hand is skipped", "remove STACK=crashes",
     [["head-bucket --bucket crashes-caches-1", 254, "", "An error occurred (404) when calling the HeadBucket operation: Not Found\n"], *RUNNING],
     [*ASKS, *LISTS, *STOPPING, emptying("crashes-caches-1")[0], *emptying("crashes-attachments-1"), DELETES], 0, ""),
    ("a bucket that may not be read ends the removal", "remove STACK=crashes",
     [["head-bucket", 254, "", "An error occurred (403) when calling the HeadBucket operation: Forbidden\n"], *RUNNING], [*ASKS, *LISTS, *STOPPING, emptying("crashes-caches-1")[0]], 1, "cannot be emptied: .*403"),
    ("a bucket that is not emptied keeps the stack", "remove STACK=crashes", [["^aws s3 rm", 1, "", "delete failed\n"], *RUNNING], [*ASKS, *LISTS, *STOPPING, *emptying("crashes-caches-1")], 1, "delete failed"),
    ("buckets that are not known keep the stack", "remove STACK=crashes", [["describe-stack-resources .*S3", 254, "", "Throttling\n"], *RUNNING], [*ASKS, *LISTS[:3]], 1, "Throttling[\\s\\S]*nothing was removed"),
    ("logs that are not known keep the stack", "remove STACK=crashes", [["LogGroup", 254, "", "Throttling\n"], *RUNNING], [*ASKS, *LISTS], 1, "Throttling[\\s\\S]*nothing was removed"),
    ("a stack that does not exist is not removed", "remove STACK=crashes", [IDENTITY, NO_STACK], ASKS, 1, "no stack crashes in account 111122223333"),
    ("without credentials nothing is removed", "remove STACK=crashes", [["^aws sts", 253, "", "Unable to locate credentials\n"]], ASKS[:1], 1, "Unable to locate credentials"),
    ("a stack that is changing is not removed", "remove STACK=crashes", [IDENTITY, status("DELETE_IN_PROGRESS")], ASKS, 1, "wait until"),
    ("a name that no stack has is refused", "remove STACK='s3://bucket'", [], [], 2, "not the name of a stack"),
    ("without the AWS command line nothing is removed", "remove STACK=crashes", ["without aws"], [], 1, "missing: aws"),
]


def run(arguments, answers):
    """Runs make with stand-ins. Returns the recorded commands, the exit code of the recipe, and what was printed."""
    absent = {answer.removeprefix("without ") for answer in answers if isinstance(answer, str)}
    variables = dict(answer.split("=", 1) for answer in answers if isinstance(answer, str) and "=" in answer)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copy(CHECKOUT / "Makefile", folder)
        shutil.copytree(CHECKOUT / "infra", folder / "infra", ignore=shutil.ignore_patterns("target", "local", "cli", "__pycache__"))
        tools, programs = folder / "target/deploy/bin", folder / "stand-ins/bin"
        for place in (tools, programs):
            place.mkdir(parents=True)
        # `infra/doctor venv deploy` finds what it would install.
        shutil.copy(CHECKOUT / "infra/check/deploy-requirements.txt", folder / "target/deploy/installed.txt")
        for name in SYSTEM:
            (programs / name).symlink_to(shutil.which(name))
        stand_in = folder / "stand-ins/program"
        stand_in.parent.mkdir(exist_ok=True)
        for place, name in ((programs, "aws"), (programs, "rustup"), (tools, "sam")):
            if name not in absent:
                (place / name).write_text(STAND_IN.replace("parent.parent.parent", "parents[2]" if place == programs else "parents[3]"))
                (place / name).chmod(0o755)
        (folder / "answers.json").write_text(json.dumps([answer for answer in answers if not isinstance(answer, str)]))
        environment = {"PATH": str(programs), "HOME": temporary, "LC_ALL": "C.UTF-8", "AWS_REGION": REGION, **variables}
        done = subprocess.run(["make", "--no-print-directory", *shlex.split(arguments)], cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        recorded = folder / "recorded.jsonl"
        commands = [" ".join(argument.replace(" ", SPACE) for argument in json.loads(line)) for line in recorded.read_text().splitlines()] if recorded.exists() else []
    printed = done.stdout + done.stderr
    failed = re.search(r"make: \*\*\* .* Error (\d+)", printed)
    return commands, int(failed[1]) if failed else done.returncode, printed


def imported(name):
    """Returns a script of infra as a module."""
    sys.path.insert(0, str(CHECKOUT / "infra"))
    loader = importlib.machinery.SourceFileLoader(name, str(CHECKOUT / "infra" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


SMOKE, BACKUP = imported("smoke"), imported("backup")
# Requests do not wait before they are repeated.
BACKUP.PAUSES = tuple(0 for _ in BACKUP.PAUSES)


def error(name):
    return f"<Error><Code>{name}</Code></Error>"


OK, GONE = (200, "found"), (204, "")
# What HEAD answers, with two headers that a copy keeps and one that it does not.
FOUND = (200, "", {"content-length": "12", "etag": '"e"', "content-language": "en", "x-amz-meta-kind": "a  b", "last-modified": "now"})
REPLACED, NO_BODY = (412, error("PreconditionFailed")), (400, "")
SLOW_DOWN, DENIED, EXPIRED = (503, error("SlowDown")), (403, error("AccessDenied")), (400, error("ExpiredToken"))
TOO_MANY = (400, '{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}')
CONDITION = (400, '{"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}')
# A server that accepts a connection and closes it.
NO_ANSWER = None
BEGUN, PART = (200, "<Begun><UploadId>u</UploadId></Begun>"), (200, '<Part><ETag>"e"</ETag></Part>')


def reads(services):
    services.object("GET", "bucket", "key")


def queries(services):
    services.table("Query", {})


def copies(services):
    services.copy("from", "key", "to", "key", part_bytes=12, notes_source=True)


def copies_back(services):
    services.copy("from", "key", "to", "key", part_bytes=12, notes_source=False)


def copies_parts(services):
    services.copy("from", "key", "to", "key", part_bytes=6, notes_source=True)


READ, QUERY, HEAD = "GET /bucket/key key-1", "POST / key-1", "HEAD /from/key key-1"
# What is recorded of a copy: that it is of one state, that it has the metadata of its source, and what it notes.
KEEPS, OF_ONE_STATE = 'content-language:en x-amz-meta-kind:a  b', 'x-amz-copy-source-if-match:"e"'
WITHOUT_TAGS, NOTES = "x-amz-metadata-directive:REPLACE x-amz-tagging-directive:REPLACE", "x-amz-meta-source-etag:e"
COPY, COPY_BACK = (f"PUT /to/key key-1 {OF_ONE_STATE} {WITHOUT_TAGS} {KEEPS}{notes}" for notes in (f" {NOTES}", ""))
BEGINS, FIRST, SECOND, COMPLETES, ABORTS = (
    f"{request} key-1{headers}"
    for request, headers in (
        ("POST /to/key?uploads=", f" {KEEPS} {NOTES}"), ("PUT /to/key?partNumber=1&uploadId=u", f" {OF_ONE_STATE}"), ("PUT /to/key?partNumber=2&uploadId=u", f" {OF_ONE_STATE}"),
        ("POST /to/key?uploadId=u", ""), ("DELETE /to/key?uploadId=u", ""),
    )
)
RECORDED_HEADERS = ["x-amz-copy-source-if-match", "x-amz-metadata-directive", "x-amz-tagging-directive", "content-language", "x-amz-meta-kind", "x-amz-meta-source-etag", "last-modified"]
# What is tested: what is done, the answers, the recorded requests (each with its credentials, and the headers of copies),
# and the error.
BACKUP_TESTS = [
    ("a request that succeeds is sent once", reads, [OK], [READ], ""),
    ("a request that S3 refuses for now is repeated", reads, [SLOW_DOWN, SLOW_DOWN, OK], [READ] * 3, ""),
    ("there are three attempts", reads, [(500, error("InternalError"))] * 3, [READ] * 3, "answered with 500: .*InternalError"),
    ("a request beyond a limit is repeated", reads, [(429, ""), OK], [READ] * 2, ""),
    ("a request that DynamoDB refuses for now is repeated", queries, [TOO_MANY, (200, "{}")], [QUERY] * 2, ""),
    ("a connection that ends is opened again", reads, [NO_ANSWER, OK], [READ] * 2, ""),
    ("a request that is never answered fails", reads, [NO_ANSWER] * 3, [READ] * 3, "^GET /bucket/key: .*closed"),
    ("a request that is denied is not repeated", reads, [DENIED], [READ], "answered with 403: .*AccessDenied"),
    ("a write that another one precedes is not repeated", queries, [CONDITION], [QUERY], "ConditionalCheckFailed"),
    ("credentials that have expired are read again", reads, [EXPIRED, OK], [READ, "GET /bucket/key key-2"], ""),
    ("they are read again once", reads, [EXPIRED, EXPIRED], [READ, "GET /bucket/key key-2"], "ExpiredToken[\\s\\S]*Log in again"),
    ("credentials that have expired are read again after a response without a body", copies, [NO_BODY, FOUND, OK], [HEAD, HEAD.replace("key-1", "key-2"), COPY.replace("key-1", "key-2")], ""),
    ("a copy has the metadata of its source, and its ETag", copies, [FOUND, OK], [HEAD, COPY], ""),
    ("a copy back has the metadata of its source", copies_back, [FOUND, OK], [HEAD, COPY_BACK], ""),
    ("a file that is replaced while it is copied is left to the next run", copies, [FOUND, REPLACED], [HEAD, COPY], "^from/key was replaced meanwhile: the next run copies it$"),
    ("a copy that breaks off after its response began is repeated", copies, [FOUND, (200, error("InternalError")), OK], [HEAD, COPY, COPY], ""),
    ("a copy that always breaks off fails", copies, [FOUND, *[(200, error("InternalError"))] * 3], [HEAD, *[COPY] * 3], "PUT /to/key failed: .*InternalError"),
    ("a copy in parts is completed", copies_parts, [FOUND, BEGUN, PART, PART, OK], [HEAD, BEGINS, FIRST, SECOND, COMPLETES], ""),
    ("a copy in parts of two states is aborted", copies_parts, [FOUND, BEGUN, PART, REPLACED, GONE], [HEAD, BEGINS, FIRST, SECOND, ABORTS], "^from/key was replaced meanwhile"),
    ("a copy whose part fails is aborted", copies_parts, [FOUND, BEGUN, PART, DENIED, GONE], [HEAD, BEGINS, FIRST, SECOND, ABORTS], "403: .*AccessDenied"),
    ("a copy that is not completed is aborted", copies_parts, [FOUND, BEGUN, PART, PART, DENIED, GONE], [HEAD, BEGINS, FIRST, SECOND, COMPLETES, ABORTS], "AccessDenied"),
    ("a copy that cannot be aborted fails for its first reason", copies_parts, [FOUND, BEGUN, (404, error("NoSuchKey")), DENIED], [HEAD, BEGINS, FIRST, ABORTS], "NoSuchKey"),
]
# Uploads and their copies, each as a size, an ETag, a second, and the ETag in its metadata, and what copies them. The times
# are those of the beginning of an upload in parts, and of the copy.
STATES = [
    ("an upload without a copy", (4, "a", 2, None), None, {"save"}),
    ("a lost upload", None, (4, "a", 2, "a"), {"restore", "overwrite"}),
    ("a file that has not changed", (4, "a", 2, None), (4, "a", 1, None), set()),
    ("a copy with another ETag", (4, "a-2", 1, None), (4, "b", 2, "a-2"), set()),
    ("an upload that was restored, and has another ETag than its copy", (4, "c", 3, "a-2"), (4, "b", 2, "a-2"), set()),
    ("another file of the same size", (4, "c", 3, None), (4, "b", 2, "a"), {"save", "overwrite"}),
    ("another file, whose upload in parts began before the copy", (4, "c-2", 1, None), (4, "b", 2, "a"), {"save", "overwrite"}),
    ("another file of another size, whose upload in parts began before the copy", (5, "c-2", 1, None), (4, "b", 2, "a"), {"save", "overwrite"}),
    ("another file that was copied from a restored one", (4, "c", 3, "d"), (4, "b", 2, "a"), {"save", "overwrite"}),
    ("a copy of an earlier release with another ETag", (4, "a-2", 1, None), (4, "b", 2, None), {"save", "overwrite"}),
    ("an older upload of another size than a copy of an earlier release", (5, "a", 1, None), (4, "b", 2, None), {"save", "restore", "overwrite"}),
    ("a newer upload of another size than a copy of an earlier release", (5, "a", 3, None), (4, "b", 2, None), {"save", "overwrite"}),
]


def requested(do, answers):
    """Does something with infra/backup. Returns the recorded requests, and the error."""
    answers, recorded = iter(answers), []

    class StandIn(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            key = re.search("Credential=([^/]+)/", self.headers["authorization"])[1]
            headers = [f"{name}:{self.headers[name]}" for name in RECORDED_HEADERS if name in self.headers]
            recorded.append(" ".join([self.command, self.path, key, *headers]))
            answer = next(answers, (500, "the test expects no more requests"))
            if answer is not NO_ANSWER:
                code, body, *more = answer
                self.send_response(code)
                for name, value in more[0].items() if more else ():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *_):
            pass

    keys = ((f"key-{number}", "secret", None) for number in (1, 2, 3))
    failed = ""
    with http.server.HTTPServer(("127.0.0.1", 0), StandIn) as server, mock.patch.dict(os.environ, NO_PROXY="127.0.0.1"), \
            mock.patch.object(BACKUP.Credentials, "of_environment", lambda _: next(keys)):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            do(BACKUP.Services(argparse.Namespace(region=REGION, backup="to", backup_region=None, s3=address, dynamodb=address)))
        except BACKUP.Failed as error:
            failed = str(error)
        finally:
            server.shutdown()
            thread.join()
    return recorded, failed


def copied(command):
    """Returns what `save`, `restore` or `restore --overwrite` copies of STATES."""
    uploads = {what: upload for what, upload, _, _ in STATES if upload}
    saved = {f"uploads/{what}": copy for what, _, copy, _ in STATES if copy}

    class Buckets:
        def states(self, bucket):
            return uploads if bucket == "uploads" else saved

        def list(self, bucket, _):
            return {key: BACKUP.Listed(size, etag, f"2026-11-27T00:00:0{second}.000Z") for key, (size, etag, second, _) in self.states(bucket).items()}

        def head(self, bucket, key):
            noted = self.states(bucket)[key][3]
            return {BACKUP.SOURCE_ETAG: noted} if noted else {}

        def copy(self, source, from_key, target, to_key, part_bytes, notes_source):
            expected = ("uploads", "backup", True) if command == "save" else ("backup", "uploads", False)
            assert (source, target, notes_source) == expected, (source, target, notes_source)
            copies.add(to_key.removeprefix("uploads/"))

        def object(self, *_, **__):
            return b""

        def table(self, *_):
            return {"Items": []}

    copies = set()
    arguments = argparse.Namespace(uploads="uploads", backup="backup", table="table", tokens="tokens/1", prefix="", overwrite=command == "overwrite", part_bytes=9)
    with contextlib.redirect_stdout(io.StringIO()):
        (BACKUP.save if command == "save" else BACKUP.restore)(Buckets(), arguments)
    return copies


def check_backup(checks):
    for what, do, answers, expected, shown in BACKUP_TESTS:
        recorded, failed = requested(do, answers)
        holds = recorded == expected and bool(failed) == bool(shown) and re.search(shown, failed)
        checks.that("backup", what, holds, "" if holds else f"recorded: {recorded}; failed: {failed}")
    for command in ("save", "restore", "overwrite"):
        copies = copied(command)
        for what, _, _, by in STATES:
            checks.that("backup", f"{command}: {what} {'is copied' if command in by else 'stays'}", (what in copies) == (command in by))


def check_regions(checks):
    for region, domain in (("eu-central-1", "amazonaws.com"), ("us-gov-west-1", "amazonaws.com"), ("cn-north-1", "amazonaws.com.cn"), ("eusc-de-east-1", "amazonaws.eu")):
        checks.that("regions", f"infra/backup requests {region} in {domain}", BACKUP.endpoint("s3", region) == f"https://s3.{region}.{domain}")
        gateway = SMOKE.GATEWAY.fullmatch(f"a1b2c3.execute-api.{region}.{domain}")
        checks.that("regions", f"infra/smoke signs requests to API Gateway in {region}", gateway is not None and gateway[1] == region)


def main():
    checks = template.Checks()
    for what, arguments, answers, expected, code, shown in TESTS:
        commands, ended, printed = run(arguments, answers)
        holds = commands == expected and ended == code and re.search(shown, printed)
        differing = next((pair for pair in zip([*commands, None], [*expected, None]) if pair[0] != pair[1]), None)
        found = "" if holds else f"exit code {ended}; first difference (found, expected): {differing}; printed: {printed}"
        checks.that(arguments.split()[0], what, holds, found)
    check_backup(checks)
    check_regions(checks)
    checks.report("make deploy, make remove and infra/backup")
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
