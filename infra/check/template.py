#!/usr/bin/env python3
"""Checks infra/template.yaml without AWS: translates it as SAM does, lints the translation, checks its wiring.

Linters barely check raw SAM, so all checks use the CloudFormation template that SAM generates.

    python3 infra/check/template.py              the checks, as a table; exit code 1 if one fails
    python3 infra/check/template.py --self-test  seeds one mistake at a time and shows that each is detected
    python3 infra/check/template.py --print      the translated template

The libraries of requirements.txt are installed into a virtual environment (--venv, by default .venv in the checkout)
at the first run. Nothing else is written.
"""

import argparse
import copy
import fnmatch
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
TEMPLATE = HERE.parent / "template.yaml"
REQUIREMENTS = HERE / "requirements.txt"
PRICES = HERE.parent / "prices.json"
DEPLOY = HERE.parent / "deploy"
README = HERE.parent / "README.md"

REGIONS = ["eu-central-1", "us-east-1"]
# What of cfn-lint is ignored: the rule and the parameter, with the reason. One that is not found fails.
LINT_IGNORED = {}
QUEUES = ["EagerQueue", "UploadsQueue", "RefreshQueue"]
FUNCTIONS = ["SymbolicateFunction", "DeriveFunction", "PruneFunction"]
# Settings that may be secrets: the parameter with the name of the secret, and the value if it is empty.
SECRETS = {"SOURCES": ("SourcesSecret", "[]"), "SOURCE_LINKS": ("SourceLinksSecret", "[]"), "REQUEST_SOURCES_SECRET": ("RequestSourcesSecret", "unset")}
READS_SECRETS = ["secretsmanager:GetSecretValue", "ssm:GetParameter"]
# A parameter that names the secrets of the last deployment, which versions that still serve read.
FORMER_SECRETS = {(action, "FormerSecrets") for action in READS_SECRETS}
# The grants of services that the local stack does not have. The others are enforced there, and `make test` shows that
# each is needed (tests/src/grants.rs).
LOGS = {("logs:CreateLogStream", "Logs"), ("logs:PutLogEvents", "Logs")}
OF_SECRETS = FORMER_SECRETS | {(action, secret) for action in READS_SECRETS for secret, _ in SECRETS.values()}
# The secret that every function reads: the headers for the collector of traces.
OF_TRACES = {(action, "TraceHeadersSecret") for action in READS_SECRETS}
# What Lambda needs to connect a function to subnets, and to disconnect it; EC2 has no resources for some of it. Source:
# AWS managed policy reference, AWSLambdaVPCAccessExecutionRole.
OF_NETWORK = {
    (f"ec2:{action}", "*")
    for action in ("CreateNetworkInterface", "DescribeNetworkInterfaces", "DescribeSubnets", "DeleteNetworkInterface", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses")
}
OF_EVERY_FUNCTION = LOGS | OF_TRACES | OF_NETWORK
ELSEWHERE = {
    "SymbolicateFunction": OF_EVERY_FUNCTION | OF_SECRETS | {("kms:Decrypt", "KmsKey"), ("kms:GenerateDataKey", "KmsKey")},
    "DeriveFunction": OF_EVERY_FUNCTION | OF_SECRETS | {("kms:Decrypt", "KmsKey"), ("kms:GenerateDataKey", "KmsKey"), ("sts:AssumeRole", "SourceRoles")},
    "PruneFunction": OF_EVERY_FUNCTION | {("kms:Decrypt", "KmsKey")},
}
# The condition of a call by the code of a function, whose role Lambda uses, too. The name of the function would be a
# circular reference.
BY_CODE = {"ArnLike": {"lambda:SourceFunctionArn": {"Fn::Sub": "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:*"}}}
# The condition of a write that may replace an object. The parts of a multipart upload have no conditions; its completion
# has.
MAY_REPLACE = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
# The condition of a request that names the partition of the access tokens. A test compares it with the code
# (tests/tests/e2e/template.rs).
OF_ACCESS_TOKENS = {"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["2de8bce5133f08dc3ebb75abcb1ef6c0951800ee3ae8ca06fcf58395d1244218"]}}
# What functions that issue no access token may not do with them; one that has expired is removed by prune.
NOT_WITH_TOKENS = {"DeriveFunction": ["dynamodb:*"], "PruneFunction": ["dynamodb:PutItem", "dynamodb:UpdateItem"]}
# Where Lambda has no setting RecursiveLoop. Source: github.com/aws/aws-lambda-roadmap/issues/18.
WITHOUT_LOOP_DETECTION = [{"AWS::Partition": "aws-us-gov", "AWS::Region": "us-gov-west-1"}, {"AWS::Partition": "aws", "AWS::Region": "mx-central-1"}, {"AWS::Partition": "aws", "AWS::Region": "ap-southeast-6"}]
# What CodeDeploy needs to move the alias of a function to a new version, step by step, while it watches alarms.
MOVES_ALIAS = ["lambda:GetAlias", "lambda:UpdateAlias", "lambda:GetProvisionedConcurrencyConfig"]
# The roles of services: the service that assumes each, and what it may do. SAM adds no roles.
ROLES_OF_SERVICES = {
    "PruneScheduleRole": ("scheduler.amazonaws.com", {("lambda:InvokeFunction", "PruneFunction")}),
    **{
        f"{name}DeploymentRole": (
            "codedeploy.amazonaws.com",
            {(action, f"{name}Function{version}") for action in MOVES_ALIAS for version in ("", ":*")} | {("cloudwatch:DescribeAlarms", "*")},
        )
        for name in ("Symbolicate", "Derive")
    },
}
# The condition of the policies of queues and topics that refuses plain HTTP.
WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}
# A dead letter keeps the age of its message, so it has to be kept for longer than a message waits. Source: SQS developer
# guide, "Setting-up dead-letter queue retention".
SECONDS_FOR_REDRIVE = 4 * 24 * 3600
# How much later than an invocation ends its metrics may be there.
SECONDS_FOR_METRICS = 180
# What Lambda needs to invoke a function with the messages of a queue.
RECEIVES = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
# How SAM names the alias `live` of a function, under which its newest version is called.
ALIAS = "Aliaslive"
# The memory that a function may have in a new account.
NEW_ACCOUNT_MB = 3008
# The routes of the API: the condition and the authorizer of each. What no authorizer checks, the function does.
AUTHORIZERS = {"$default": (None, "AWS_IAM"), "/o/{proxy+}": ("HasIssuer", "Issuer"), "/scope/{proxy+}": (None, "NONE"), "/t/{proxy+}": (None, "NONE"),
               "/tokens": (None, "AWS_IAM"), "/tokens/{id}": (None, "AWS_IAM"), "/rollout": (None, "AWS_IAM")}
# The metrics of AWS that alarms and the dashboard may name: the dimensions, with the type of the resource whose name is
# their value, or the values. Sources: the pages "metrics and dimensions" of each service. Those that no resource has are
# of the whole account.
METRICS = {
    "AWS/Lambda": ({"FunctionName": "AWS::Lambda::Function"}, {"Invocations", "Errors", "Throttles", "Duration", "ConcurrentExecutions", "UnreservedConcurrentExecutions", "RecursiveInvocationsDropped"}),
    "AWS/SQS": ({"QueueName": "AWS::SQS::Queue"}, {"ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"}),
    "AWS/ApiGateway": ({"ApiId": "AWS::ApiGatewayV2::Api"}, {"Count", "4xx", "5xx", "Latency", "IntegrationLatency", "DataProcessed"}),
    "AWS/DynamoDB": ({"TableName": "AWS::DynamoDB::Table"}, {"ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits", "ReadThrottleEvents", "WriteThrottleEvents"}),
    "AWS/S3": ({"BucketName": "AWS::S3::Bucket", "StorageType": {"StandardStorage", "IntelligentTieringFAStorage", "IntelligentTieringIAStorage", "IntelligentTieringAIAStorage"}}, {"BucketSizeBytes"}),
    "AWS/Logs": ({"LogGroupName": "AWS::Logs::LogGroup"}, {"IncomingBytes", "IncomingLogEvents"}),
}
OF_THE_ACCOUNT = {("AWS/Lambda", "ConcurrentExecutions"), ("AWS/Lambda", "UnreservedConcurrentExecutions")}
# The classes in which S3 keeps objects that a rule moves to INTELLIGENT_TIERING, and others. Source: Amazon S3 user guide,
# "Metrics and dimensions".
STORAGE_OF_UPLOADS = METRICS["AWS/S3"][0]["StorageType"]
# The metrics of the functions: those of `enum Metric`.
OWN_METRICS = CHECKOUT / "shared/src/runtime/metrics.rs"
# What is watched: the metric, and the resource, by the alarm. An alarm that is not listed may watch anything.
WATCHED = {
    "SymbolicateRollbackAlarm": {("Errors", "SymbolicateFunction")},
    "DeriveRollbackAlarm": {("Errors", "DeriveFunction")},
    "SymbolicateErrorsAlarm": {("Errors", "SymbolicateFunction")},
    "DeriveErrorsAlarm": {("Errors", "DeriveFunction")},
    "PruneErrorsAlarm": {("Errors", "PruneFunction")},
    "PruneMissedAlarm": {("Invocations", "PruneFunction")},
    "DeadLettersAlarm": {("ApproximateNumberOfMessagesVisible", "DeadLetters")},
    **{f"{queue}AgeAlarm": {("ApproximateAgeOfOldestMessage", queue)} for queue in QUEUES},
    "ApiErrorsAlarm": {("5xx", "Api")},
    "DoubtfulLossesAlarm": {("DoubtfulLosses", "AWS::StackName")},
    "ThrottlesAlarm": {("Throttles", name) for name in FUNCTIONS},
    "ConcurrencyAlarm": {("UnreservedConcurrentExecutions", None)},
    "RecursionAlarm": {("RecursiveInvocationsDropped", "DeriveFunction")},
    "DailyCostAlarm": {
        ("Duration", "SymbolicateFunction"), ("Duration", "DeriveFunction"), ("Count", "Api"),
        ("ConsumedWriteCapacityUnits", "RecordsTable"), ("IncomingBytes", "Logs"),
    },
}
# Actions that change a bucket.
WRITES = {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--venv", type=Path, default=CHECKOUT / ".venv", help="where the libraries are installed")
    parser.add_argument("--self-test", action="store_true", help="seed mistakes and show that each is detected")
    parser.add_argument("--print", action="store_true", help="print the translated template and stop")
    arguments = parser.parse_args()
    enter(arguments.venv.absolute())

    template, problems = load(TEMPLATE.read_text())
    if arguments.print:
        print(json.dumps(translate(template), indent=2))
        return 0
    if arguments.self_test:
        return self_test(template)

    checks = check(template)
    checks.all("yaml", "no anchors or aliases, which CloudFormation does not support", problems)
    checks.report()
    return checks.exit_code()


def enter(folder, script=Path(__file__).resolve()):
    """Restarts `script` inside the virtual environment `folder`, and creates the environment first if necessary.

    The stamp has the hash of the installed requirements.txt, so that a changed one is installed again.
    """
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = folder / "symdepot-requirements.sha256"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {REQUIREMENTS.name} into {folder}", file=sys.stderr)
        # A failed attempt leaves an environment without pip.
        if not (folder / "bin" / "pip").exists():
            try:
                venv.create(folder, with_pip=True, clear=True)
            except subprocess.CalledProcessError:
                sys.exit("python cannot create a virtual environment: install its venv package (Debian: apt-get install python3-venv)")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
        if subprocess.run(pip).returncode != 0:
            sys.exit(f"could not install the libraries of {REQUIREMENTS}: check the access to the package index")
        stamp.write_text(wanted)
    if Path(sys.prefix).resolve() != folder.resolve():
        os.execv(python, [str(python), "-B", str(script), *sys.argv[1:]])


def load(text):
    """Returns the template as plain data, and its aliases."""
    import yaml
    from cfnlint.decode import cfn_yaml

    aliases = [
        f"line {event.start_mark.line + 1}: *{event.anchor}"
        for event in yaml.parse(text, Loader=yaml.SafeLoader)
        if isinstance(event, yaml.AliasEvent)
    ]
    return json.loads(json.dumps(cfn_yaml.loads(text))), aliases


def translate(template, packages=None):
    """Returns the CloudFormation template that SAM generates from `template`, as `sam deploy` does after a build.

    `packages` has the addresses of the functions' packages, by the names of the functions.
    """
    import boto3
    import logging
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    logging.getLogger("samtranslator").setLevel(logging.ERROR)
    template = copy.deepcopy(template)
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function":
            # `sam build` and `sam package` set the location of the package.
            resource["Properties"]["CodeUri"] = (packages or {}).get(name, "s3://packages/bootstrap.zip")
    # The map of managed policies is only needed for policies that are referenced by name.
    translator = Translator({}, Parser(), boto_session=boto3.session.Session(region_name=REGIONS[0]))
    return translator.translate(template, {})


def lint(translated, ignored=None):
    """Returns the errors and warnings of cfn-lint for the translation, except `ignored`, by default LINT_IGNORED."""
    from cfnlint.api import ManualArgs, lint as cfn_lint

    matches = cfn_lint(json.dumps(translated, indent=1), config=ManualArgs(regions=REGIONS))
    expected = LINT_IGNORED if ignored is None else ignored
    found, seen = [], set()
    for match in matches:
        place = "/".join(str(part) for part in getattr(match, "path", None) or [])
        reason = next(((rule, name) for rule, name in expected if rule == match.rule.id and name in place + match.message), None)
        if reason:
            seen.add(reason)
            continue
        found.append(f"{match.rule.id} {match.message} ({place or f'line {match.linenumber}'})")
    return found + [f"{rule} of {name} is ignored, but not found" for rule, name in sorted(expected.keys() - seen)]


class Checks:
    """The checks: what was checked, what was found, and whether that is correct."""

    def __init__(self):
        self.rows = []

    def that(self, topic, what, holds, found=""):
        self.rows.append((bool(holds), topic, what, str(found)))

    def all(self, topic, what, problems):
        """Adds one successful check, or one failure for each problem."""
        if not problems:
            self.that(topic, what, True)
        for problem in problems:
            self.that(topic, what, False, problem)

    def failures(self):
        return [f"{topic}: {what}: {found}" for holds, topic, what, found in self.rows if not holds]

    def report(self, of=None):
        width = max(len(topic) for _, topic, _, _ in self.rows)
        for holds, topic, what, found in self.rows:
            print(f"{'ok  ' if holds else 'FAIL'} {topic:<{width}}  {what}{': ' + found if found else ''}")
        failed = len(self.failures())
        print(f"\n{len(self.rows)} checks of {of or TEMPLATE.relative_to(CHECKOUT)}, {failed} failed")

    def exit_code(self):
        return 1 if self.failures() else 0


def check(template):
    """Runs all checks on `template`."""
    from samtranslator.model.exceptions import InvalidDocumentException

    checks = Checks()
    check_packages(checks, template)
    try:
        translated = translate(template)
    except InvalidDocumentException as error:
        checks.all("translation", "SAM accepts the template", [cause.message for cause in error.causes])
        return checks
    checks.that("translation", "SAM accepts the template", True, f"{len(translated['Resources'])} resources")
    checks.all("lint", f"cfn-lint on the translation ({', '.join(REGIONS)})", lint(translated))

    stack = Stack(translated)
    check_parameters(checks, template)
    check_references(checks, template)
    check_table(checks, stack)
    check_buckets(checks, stack)
    check_queues(checks, stack)
    check_api(checks, stack)
    check_schedule(checks, stack)
    check_limits(checks, stack)
    check_roles(checks, stack)
    check_grants(checks, stack)
    check_alarms(checks, stack)
    check_dashboard(checks, stack)
    check_policies(checks, stack, template.get("Outputs", {}))
    return checks


class Stack:
    """The translated resources, with lookups by type and by name, and the values of parameters."""

    def __init__(self, translated):
        self.resources = translated["Resources"]
        self.parameters = {name: parameter.get("Default") for name, parameter in translated.get("Parameters", {}).items()}
        self.conditions = translated.get("Conditions", {})

    def of_type(self, kind):
        return {name: r.get("Properties", {}) for name, r in self.resources.items() if r["Type"] == kind}

    def properties(self, name):
        return self.resources.get(name, {}).get("Properties", {})

    def exists(self, name, **chosen):
        """Returns whether there is a resource for the defaults of the parameters, or for chosen ones."""
        condition = self.resources[name].get("Condition")
        return condition is None or self.holds(self.conditions[condition], **chosen)

    def value(self, value, **chosen):
        """Returns a value of the template for the defaults of the parameters, or for chosen ones; None if there is none."""
        if not isinstance(value, dict) or len(value) != 1:
            return value
        [(name, argument)] = value.items()
        if name == "Ref":
            return None if argument == "AWS::NoValue" else {**self.parameters, **chosen}.get(argument, value)
        if name == "Fn::If":
            condition, then, otherwise = argument
            return self.value(then if self.holds(self.conditions[condition], **chosen) else otherwise, **chosen)
        return value

    def holds(self, condition, **chosen):
        [(name, argument)] = condition.items()
        if name == "Fn::Not":
            return not self.holds(argument[0], **chosen)
        if name == "Fn::Or":
            return any(self.holds(one, **chosen) for one in argument)
        return self.value(argument[0], **chosen) == self.value(argument[1], **chosen)


def target(value):
    """Returns the readable form of a reference: `EagerQueue` for its Ref, ARN or URL, `CachesBucket/requests/*` for a Sub."""
    if not isinstance(value, dict):
        return str(value)
    if "Ref" in value:
        return value["Ref"]
    if "Fn::GetAtt" in value:
        attribute = value["Fn::GetAtt"]
        return (attribute if isinstance(attribute, str) else attribute[0]).split(".")[0]
    if "Fn::Split" in value:
        return target(value["Fn::Split"][1])
    if "Fn::Sub" in value:
        text = value["Fn::Sub"] if isinstance(value["Fn::Sub"], str) else value["Fn::Sub"][0]
        return re.sub(r"\$\{(\w+)(\.Arn)?\}", r"\1", text)
    return json.dumps(value)


def as_list(value):
    return value if isinstance(value, list) else [value]


def check_parameters(checks, template):
    """A deployment without any parameter works, and every parameter has an effect."""
    parameters = template.get("Parameters", {})
    checks.all("parameters", "every parameter has a default", [name for name, parameter in parameters.items() if "Default" not in parameter])
    used = json.dumps({section: template.get(section) for section in ("Conditions", "Globals", "Resources")})
    is_used = lambda name: f'{{"Ref": "{name}"}}' in used or f"${{{name}}}" in used
    checks.all("parameters", "every parameter is used", [name for name in parameters if not is_used(name)])


def check_packages(checks, template):
    """Each function is built from its own package: built at the workspace's root, it would have the features of every member."""
    problems = []
    for name in FUNCTIONS:
        function = template["Resources"].get(name, {})
        metadata = function.get("Metadata", {})
        binary = metadata.get("BuildProperties", {}).get("Binary")
        manifest = TEMPLATE.parent / str(function.get("Properties", {}).get("CodeUri")) / "Cargo.toml"
        if metadata.get("BuildMethod") != "rust-cargolambda":
            problems.append(f"{name} is not built by rust-cargolambda")
        if not manifest.is_file():
            problems.append(f"{name}: {manifest} does not exist")
        elif f'name = "{binary}"' not in manifest.read_text():
            problems.append(f"{name}: {manifest} has no binary {binary}")
    checks.all("packages", "CodeUri is the package of Binary", problems)


def check_table(checks, stack):
    tables = stack.of_type("AWS::DynamoDB::Table")
    for name, table in tables.items():
        ttl = table.get("TimeToLiveSpecification", {})
        enabled = ttl.get("Enabled") is True and ttl.get("AttributeName")
        checks.that("table", f"{name} expires items", enabled, ttl.get("AttributeName", "no TTL"))
        keys = [f"{key['AttributeName']} {key['KeyType']}" for key in table.get("KeySchema", [])]
        checks.that("table", f"{name} has the right keys", keys == ["partition HASH", "sort RANGE"], ", ".join(keys))
        indexes = [k for k in table if k.endswith("SecondaryIndexes")]
        restored = table.get("PointInTimeRecoverySpecification", {}).get("PointInTimeRecoveryEnabled") is True
        checks.that("table", f"{name} can be restored, because tokens cannot be made again", restored)
        checks.that("table", f"{name} has no index, because prune scans", not indexes, ", ".join(indexes) or "none")
    checks.that("table", "exactly one", len(tables) == 1, ", ".join(tables))


def check_buckets(checks, stack):
    configurations = stack.properties("UploadsBucket").get("NotificationConfiguration", {}).get("QueueConfigurations", [])
    wired = {entry.get("Event"): target(entry.get("Queue")) for entry in configurations}
    for event in ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*"):
        checks.that("uploads", f"{event} is sent to the uploads queue", wired.get(event) == "UploadsQueue", wired.get(event))
    allowed = [
        (target(queue), target(statement.get("Resource")))
        for policy in stack.of_type("AWS::SQS::QueuePolicy").values()
        for queue in policy.get("Queues", [])
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Principal") == {"Service": "s3.amazonaws.com"}
        and "sqs:SendMessage" in as_list(statement.get("Action"))
        and "aws:SourceArn" in json.dumps(statement.get("Condition", {}))
    ]
    checks.that("uploads", "S3 may send to the uploads queue, for this bucket only", allowed == [("UploadsQueue", "UploadsQueue")], allowed)

    for name in stack.of_type("AWS::S3::Bucket"):
        bucket = stack.properties(name)
        block = bucket.get("PublicAccessBlockConfiguration", {})
        private = len(block) == 4 and all(block.values())
        checks.that("buckets", f"{name} blocks public access", private)
        denied = any(
            statement.get("Effect") == "Deny"
            and statement.get("Condition") == WITHOUT_TLS
            and {target(r) for r in as_list(statement.get("Resource"))} == {name, f"{name}/*"}
            for policy in stack.of_type("AWS::S3::BucketPolicy").values()
            if target(policy.get("Bucket")) == name
            for statement in policy["PolicyDocument"]["Statement"]
        )
        checks.that("buckets", f"{name} refuses requests without TLS", denied)
        key = stack.value(bucket.get("BucketEncryption"), KmsKey="arn:key")
        checks.that("buckets", f"{name} is encrypted with the key of the account, if there is one", key is not None and '"Ref": "KmsKey"' in json.dumps(key))
        # Names are global: without the region, an account could have the stack only once.
        named = json.dumps(bucket.get("BucketName"))
        distinct = all(part in named for part in ("${AWS::StackName}", "${AWS::AccountId}", "${AWS::Region}"))
        checks.that("buckets", f"the name of {name} has the stack, the account and the region", distinct, named)
        rules = bucket.get("LifecycleConfiguration", {}).get("Rules", [])
        checks.that("buckets", f"{name} removes abandoned multipart uploads", any("AbortIncompleteMultipartUpload" in rule for rule in rules))
        expiring = [str(rule.get("Prefix")) for rule in rules if "ExpirationInDays" in rule or "Expiration" in rule]
        # Attachments are removed when they were used; the rule is for the others.
        expected = {"None"} if name == "AttachmentsBucket" else {"requests/"}
        checks.that("buckets", f"{name} expires only request bodies and attachments", set(expiring) <= expected, ", ".join(expiring) or "nothing")
    # Minidumps hold secrets: one that no request used, or that a removal missed, is gone after a day.
    attachments = stack.properties("AttachmentsBucket")
    rules = attachments.get("LifecycleConfiguration", {}).get("Rules", [])
    expiring = [{key: value for key, value in rule.items() if key != "Id"} for rule in rules if "AbortIncompleteMultipartUpload" not in rule]
    checks.that("buckets", "attachments expire after a day", expiring == [{"Status": "Enabled", "ExpirationInDays": 1}], expiring or "never")
    # Requests name attachments; an event of one would build nothing.
    notified = attachments.get("NotificationConfiguration")
    checks.that("buckets", "attachments cause no events", not notified, notified or "none")
    create_only = [
        statement
        for policy in stack.of_type("AWS::S3::BucketPolicy").values()
        if target(policy.get("Bucket")) == "CachesBucket"
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Action"] == "s3:PutObject"
    ]
    holds = [s["Effect"] == "Deny" and s["Principal"] == "*" and target(s["Resource"]) == "CachesBucket/*" and s["Condition"] == MAY_REPLACE for s in create_only]
    checks.that("buckets", "blobs are created and never overwritten", holds == [True], create_only)
    versions = [stack.value(stack.properties("UploadsBucket").get("VersioningConfiguration"), UploadVersions=chosen) for chosen in ("off", "on")]
    checks.that("buckets", "uploads have versions if they are wanted", versions == [None, {"Status": "Enabled"}], versions)
    rules = stack.properties("UploadsBucket").get("LifecycleConfiguration", {}).get("Rules", [])
    removing = [rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in rules if "NoncurrentVersionExpiration" in rule and rule["Status"] == "Enabled"]
    checks.that("buckets", "old versions of uploads expire, also after versions were turned off", removing == [30], removing or "never")
    # Each object that is moved costs a request, and each month that it is observed: small ones would cost more.
    moved = [rule for rule in rules if rule.get("Transitions") == [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 0}] and rule["Status"] == "Enabled"]
    from_bytes = [int(rule.get("ObjectSizeGreaterThan", 0)) for rule in moved]
    checks.that("buckets", "large uploads that are not read cost less", len(moved) == 1 and from_bytes[0] >= 1 << 20, from_bytes or "none is moved")
    kept = stack.resources.get("UploadsBucket", {}).get("DeletionPolicy")
    checks.that("buckets", "uploads are kept when the stack is deleted", kept == "RetainExceptOnCreate", kept)


def check_queues(checks, stack):
    dead_letters = stack.properties("DeadLetters").get("MessageRetentionPeriod", 0)
    mappings = {target(m.get("EventSourceArn")): m for m in stack.of_type("AWS::Lambda::EventSourceMapping").values()}
    for name_of_queue in QUEUES:
        queue = stack.properties(name_of_queue)
        redrive = queue.get("RedrivePolicy", {})
        dead = target(redrive.get("deadLetterTargetArn", ""))
        checks.that("queues", f"{name_of_queue} moves failed messages to the dead letters", dead == "DeadLetters", f"{dead or 'nowhere'} after {redrive.get('maxReceiveCount')}")
        kept = queue.get("MessageRetentionPeriod", 345600)
        checks.that("queues", f"{name_of_queue}: dead letters are kept four days longer than messages", dead_letters - kept >= SECONDS_FOR_REDRIVE, f"{dead_letters} s, {kept} s")

        mapping = mappings.get(name_of_queue, {})
        name = target(mapping.get("FunctionName", "")).removesuffix(ALIAS)
        checks.that("queues", f"{name_of_queue} is consumed by derive", name == "DeriveFunction", name or "no function")
        answers = mapping.get("FunctionResponseTypes", [])
        checks.that("queues", f"{name_of_queue} accepts failures per message", answers == ["ReportBatchItemFailures"], answers)
        limit = stack.value(mapping.get("ScalingConfig", {}).get("MaximumConcurrency"))
        checks.that("queues", f"{name_of_queue} has its own concurrency limit", isinstance(limit, int), limit)
        checks.that("queues", f"{name_of_queue}: one DIF at a time", mapping.get("BatchSize") == 1, mapping.get("BatchSize"))
        visibility, timeout = queue.get("VisibilityTimeout", 30), stack.properties(name).get("Timeout", 3)
        checks.that("queues", f"{name_of_queue}: the visibility timeout covers derive's timeout", visibility >= timeout, f"{visibility} s, {timeout} s")
        attempts = int(stack.properties("DeriveFunction")["Environment"]["Variables"].get("MAX_ATTEMPTS", 0))
        receives = redrive.get("maxReceiveCount", 0)
        checks.that("queues", f"{name_of_queue}: the record's attempts end before the queue's receives", attempts < receives, f"{attempts} attempts, {receives} receives")
    derive = stack.resources.get("DeriveFunction", {})
    reserved = stack.value(stack.properties("DeriveFunction").get("ReservedConcurrentExecutions"), Reserve="builds")

    def of_queues(**parameters):
        limits = [stack.value(m.get("ScalingConfig", {}).get("MaximumConcurrency"), **parameters) for m in mappings.values()]
        return sum(limit or 0 for limit in limits)

    total = of_queues(AccountConcurrency=1000)
    # With less, invocations by its queues would be throttled; more would take concurrency from the readers without need.
    checks.that("queues", "the concurrency reserved for derive is the sum of its queues", reserved == total, f"{reserved}, {total}")
    # The others are for requests and for prune. What Lambda refuses returns to its queue, and becomes a dead letter after six times.
    new = of_queues(AccountConcurrency=10)
    checks.that("queues", "in a new account, which runs ten functions at a time, the queues run seven at most", new <= 7, new)
    for name in FUNCTIONS:
        # A new account runs ten functions at a time, and ten must stay unreserved.
        kept = stack.value(stack.properties(name).get("ReservedConcurrentExecutions"))
        checks.that("queues", f"{name} reserves nothing by default", kept is None, kept)
    # Without a reservation, requests that wait could hold all runs of the account.
    wait = stack.properties("SymbolicateFunction")["Environment"]["Variables"].get("QUEUED_WAIT", "none")
    shared, own = stack.value(wait), stack.value(wait, Reserve="builds")
    gives_way = str(shared).isdecimal() and int(shared) < 25 and own == "none"
    checks.that("queues", "requests leave runs to builds that have none of their own", gives_way, f"{shared}, {own}")
    loop = stack.properties("DeriveFunction").get("RecursiveLoop")
    usual = stack.value(loop, **{"AWS::Partition": "aws", "AWS::Region": "eu-central-1"})
    checks.that("queues", "Lambda does not stop derive's chains of messages", usual == "Allow", usual or "Terminate, by default")
    elsewhere = [stack.value(loop, **place) for place in WITHOUT_LOOP_DETECTION]
    checks.that("queues", "RecursiveLoop is not set where Lambda does not have it", elsewhere == [None] * len(WITHOUT_LOOP_DETECTION), elsewhere)
    # `make deploy` refuses a reservation that the account cannot have.
    told = re.search(r"^reservation=(\d+) ", DEPLOY.read_text(), re.MULTILINE)
    reserves = [stack.value(stack.properties(name).get("ReservedConcurrentExecutions"), Reserve="builds") or 0 for name in FUNCTIONS]
    checks.that("queues", "infra/deploy knows what Reserve=builds reserves", told and int(told[1]) == sum(reserves), f"{told and told[1]}, {sum(reserves)}")
    after = as_list(derive.get("DependsOn", []))
    checks.that("queues", "derive is deployed after its readers", f"SymbolicateFunction{ALIAS}" in after, ", ".join(after) or "in any order")
    may_hide = {resource for action, resource in grants_of(stack, "DeriveFunction") if action == "sqs:ChangeMessageVisibility"}
    checks.that("queues", "derive may set the visibility timeout of failed messages", may_hide == set(QUEUES), ", ".join(sorted(may_hide)) or "nowhere")
    check_transport(checks, stack)


def check_transport(checks, stack):
    """Queues and topics refuse plain HTTP, each by its only policy: a second one would replace it."""
    for kind, policies, field, denied in [("Queue", "AWS::SQS::QueuePolicy", "Queues", "sqs:*"), ("Topic", "AWS::SNS::TopicPolicy", "Topics", "sns:Publish")]:
        for name in stack.of_type(f"AWS::{policies.split('::')[1]}::{kind}"):
            own = [policy for policy in stack.of_type(policies).values() if name in map(target, policy[field])]
            checks.that("transport", f"{name} has one policy", len(own) == 1, len(own))
            refuses = any(
                statement["Effect"] == "Deny" and statement["Principal"] == "*" and statement["Action"] == denied and statement["Condition"] == WITHOUT_TLS and target(statement["Resource"]) == name
                for policy in own
                for statement in policy["PolicyDocument"]["Statement"]
            )
            checks.that("transport", f"{name} refuses requests without TLS", refuses)
    # A policy of its own replaces the one that lets the account publish.
    for name in stack.of_type("AWS::SNS::Topic"):
        allowed = [
            (statement["Principal"], statement["Action"], target(statement["Resource"]), statement.get("Condition"))
            for policy in stack.of_type("AWS::SNS::TopicPolicy").values()
            for statement in policy["PolicyDocument"]["Statement"]
            if statement["Effect"] == "Allow"
        ]
        wanted = ({"Service": "cloudwatch.amazonaws.com"}, "sns:Publish", name, {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}})
        checks.that("transport", f"the alarms of this account may publish to {name}, and nothing else", allowed == [wanted], allowed)


def check_api(checks, stack):
    stages = stack.of_type("AWS::ApiGatewayV2::Stage")
    names = [stage.get("StageName") for stage in stages.values()]
    checks.that("api", "the stage is $default, so that it is not in the path", names == ["$default"], names)
    throttled = all(stage.get("DefaultRouteSettings", {}).get("ThrottlingRateLimit") for stage in stages.values())
    checks.that("api", "requests are throttled", throttled)
    for api in stack.of_type("AWS::ApiGatewayV2::Api").values():
        paths = api.get("Body", {}).get("paths", {})
        checks.that("api", "no routes but those whose callers are checked", set(paths) == set(AUTHORIZERS), ", ".join(paths))
        for path, (condition, authorizer) in AUTHORIZERS.items():
            item = paths.get(path, {})
            given, item = (item["Fn::If"][0], item["Fn::If"][1]) if "Fn::If" in item else (None, item)
            checks.that("api", f"{path} exists {f'if {condition}' if condition else 'always'}", given == condition, given or "always")
            checks.that("api", f"{path} serves every method", list(item) == ["x-amazon-apigateway-any-method"], ", ".join(item))
            route = item.get("x-amazon-apigateway-any-method", {})
            integration = route.get("x-amazon-apigateway-integration", {})
            uri = target(integration.get("uri", ""))
            checks.that("api", f"{path} leads to the alias of symbolicate", f"SymbolicateFunction{ALIAS}/invocations" in uri, uri.rsplit("/functions/")[-1])
            checks.that("api", f"{path} has events of version 2.0", integration.get("payloadFormatVersion") == "2.0", integration.get("payloadFormatVersion"))
            security = [scheme for entry in route.get("security", []) for scheme in entry]
            checks.that("api", f"{path} has the authorizer {authorizer}", security == [authorizer], security or "no authorization")
        schemes = api.get("Body", {}).get("components", {}).get("securitySchemes", {})
        issuer = schemes.get("Issuer", {}).get("Fn::If", [None, {}])
        jwt = issuer[1].get("x-amazon-apigateway-authorizer", {}).get("jwtConfiguration", {})
        named = {"issuer": {"Ref": "JwtIssuer"}, "audience": [{"Ref": "JwtAudience"}]}
        checks.that("api", "JWTs are those of the issuer, for this audience", issuer[0] == "HasIssuer" and jwt == named, jwt)
        checks.that("api", "pages of other sites may not call it", "CorsConfiguration" not in api and "x-amazon-apigateway-cors" not in api.get("Body", {}))
    for stage in stages.values():
        logged = stage.get("AccessLogSettings", {})
        names = re.findall(r"\$context\.([a-zA-Z.]+)", logged.get("Format", ""))
        # Callers sign, or have a JWT. Those with a token are in the log of symbolicate.
        wanted = {"requestId", "identity.userArn", "authorizer.claims.iss", "authorizer.claims.sub", "routeKey", "status"}
        checks.that("api", "the access log names caller, route and status", wanted <= set(names), ", ".join(names) or "no access log")
        # The id with which the lines of the function begin: a token is known only there.
        checks.that("api", "the access log names the invocation", '"invocation":"$context.awsEndpointRequestId"' in logged.get("Format", ""))
        group = target(logged.get("DestinationArn", ""))
        named = json.dumps(stack.properties(group).get("LogGroupName", ""))
        # Other names fill a policy of the account. The group stays after the stack, so the next API needs another one.
        checks.that("api", "the access log has a name that no policy of the account lists", "/aws/vendedlogs/" in named and "${Api}" in named, named)
        # They contain the names of files, and tokens.
        checks.that("api", "the access log has no path and no query", not {"path", "rawPath", "rawQueryString"} & set(names))
        # API Gateway writes `-` for what a request does not have, and some values in quotes of its own.
        lines = [re.sub(r"\$context\.([a-zA-Z.]+)", lambda match: f'"{text}"' if match[1].endswith("String") else text, logged.get("Format", "")) for text in ("-", "Forbidden")]
        checks.that("api", "each line of the access log is JSON, also of a refused request", all(map(is_object, lines)), lines[-1][-120:])
        checks.that("api", "the access log expires", stack.properties(target(logged.get("DestinationArn", ""))).get("RetentionInDays"))
    timeout = stack.properties("SymbolicateFunction").get("Timeout", 3)
    checks.that("api", "symbolicate's timeout is below the gateway's (30 s)", timeout < 30, f"{timeout} s")


def is_object(text):
    """Returns whether a text is an object in JSON."""
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def check_schedule(checks, stack):
    schedules = stack.of_type("AWS::Scheduler::Schedule")
    checks.that("schedule", "exactly one", len(schedules) == 1, ", ".join(schedules))
    for name, schedule in schedules.items():
        called = target(schedule.get("Target", {}).get("Arn"))
        checks.that("schedule", f"{name} calls prune", called == "PruneFunction", called)
        expression = schedule.get("ScheduleExpression", "")
        # cfn-lint accepts `rate(1 hours)`, but the service requires the singular for one.
        valid = re.fullmatch(r"rate\((1 (minute|hour|day)|(?!0|1 )\d+ (minutes|hours|days))\)|cron\(\S+( \S+){5}\)", expression)
        checks.that("schedule", f"{name} has a valid expression", valid, expression)
        role = stack.properties(target(schedule.get("Target", {}).get("RoleArn")))
        invokes = [grant for grant in grants(role) if grant == ("lambda:InvokeFunction", "PruneFunction")]
        checks.that("schedule", f"{name} may call prune, and nothing else", invokes and invokes == grants(role), grants(role))
        trust = role.get("AssumeRolePolicyDocument", {}).get("Statement", [])
        of_account = [statement.get("Condition") for statement in trust] == [{"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}]
        checks.that("schedule", f"{name} has a role that only schedules of this account assume", of_account, trust)
        checks.that("schedule", f"{name} leaves its name to CloudFormation", "Name" not in schedule, schedule.get("Name", ""))
    invoked = {target(config.get("FunctionName")): config for config in stack.of_type("AWS::Lambda::EventInvokeConfig").values()}
    retries = {name: config.get("MaximumRetryAttempts") for name, config in invoked.items()}
    checks.that("schedule", "a run that failed is not repeated before the next one", retries == {"PruneFunction": 0}, retries)
    # Lambda keeps throttled events, by default for six hours: their runs would start together.
    ages = {name: config.get("MaximumEventAgeInSeconds", 21600) for name, config in invoked.items()}
    checks.that("schedule", "a run that was throttled is dropped before the next one", all(age < 3600 for age in ages.values()), ages)


def check_limits(checks, stack):
    """The settings of the functions fit their resources."""
    derive = stack.properties("DeriveFunction")
    settings = derive["Environment"]["Variables"]
    for setting, given, what in [
        ("DERIVE_SCRATCH_MB", derive.get("EphemeralStorage", {}).get("Size"), "the size of derive's /tmp"),
        ("DERIVE_MEMORY_MB", derive.get("MemorySize"), "derive's memory"),
    ]:
        told = settings.get(setting)
        checks.that("limits", f"{setting} is {what}", told is not None and told == given, f"{told}, {given}")
    for setting in ("SCRATCH_BYTES", "PARSER_MEMORY_BYTES", "MEMORY_CACHE_BYTES"):
        checks.that("limits", f"{setting} follows from what the function is given", settings.get(setting) == "auto", settings.get(setting))
    cpu, timeout = int(settings.get("PARSER_CPU_SECONDS", 0)), derive.get("Timeout", 3)
    checks.that("limits", "PARSER_CPU_SECONDS fits into derive's time", 0 < cpu < timeout, f"{cpu} < {timeout}")
    largest = stack.value(derive.get("MemorySize"))
    checks.that("limits", "derive fits into a new account by default", largest <= NEW_ACCOUNT_MB, f"{largest} MB")
    variables = {name: stack.properties(name)["Environment"]["Variables"] for name in FUNCTIONS}
    common = {name: json.dumps({k: v for k, v in kept.items() if k not in SECRETS}, sort_keys=True) for name, kept in variables.items()}
    checks.that("limits", "every function has the same settings, except for secrets", len(set(common.values())) == 1, f"{len(settings)} variables")
    check_secrets(checks, stack, variables)
    check_traces(checks, stack, variables)
    check_restart(checks, stack)
    groups = stack.of_type("AWS::Logs::LogGroup")
    logged = [target(stack.properties(name).get("LoggingConfig", {}).get("LogGroup", "")) for name in FUNCTIONS]
    levels = {name: stack.properties(name).get("LoggingConfig", {}).get("SystemLogLevel") for name in FUNCTIONS}
    checks.that("limits", "Lambda writes no lines about invocations that succeed", set(levels.values()) == {"WARN"}, levels)
    levels = {name: stack.properties(name).get("LoggingConfig", {}).get("ApplicationLogLevel") for name in FUNCTIONS}
    checks.that("limits", "Lambda leaves out no line of a function: LOG decides", set(levels.values()) == {"TRACE"}, levels)
    days = [group.get("RetentionInDays") for group in groups.values()]
    checks.that("limits", "logs have a limited retention", all(days) and set(logged) <= set(groups), f"{days} days")
    policies = {name: (stack.resources[name].get("DeletionPolicy"), stack.resources[name].get("UpdateReplacePolicy")) for name in groups}
    lost = [f"{name}: {found}" for name, found in policies.items() if found != ("RetainExceptOnCreate", "Retain")]
    checks.all("limits", "logs say who called also when the stack is deleted", lost)
    check_network(checks, stack)


def check_network(checks, stack):
    """The functions are in subnets if the parameters say so. Their roles let Lambda connect them, and their code not.

    The roles always do: without `SubnetIds`, Lambda disconnects the functions, after CloudFormation changed the role.
    """
    chosen = {"SubnetIds": "subnet-1,subnet-2", "SecurityGroupIds": "sg-1"}
    for name in FUNCTIONS:
        network = stack.properties(name).get("VpcConfig")
        without, within = stack.value(network), stack.value(network, **chosen) or {}
        found = {key: target(stack.value(value, **chosen)) for key, value in within.items()}
        checks.that("network", f"{name} is in the subnets of the parameters, if there are any", without is None and found == {key: key for key in chosen}, found or "never")
        role = stack.properties(target(stack.properties(name).get("Role", "")))
        statements = [statement for policy in role.get("Policies", []) for statement in policy["PolicyDocument"]["Statement"]]
        about = [statement for statement in statements if any(action.startswith("ec2:") for action in as_list(if_granted(statement)["Action"]))]
        conditional = [statement for statement in about if "Fn::If" in statement]
        checks.that("network", f"Lambda may disconnect {name} after its subnets are removed", about and not conditional, conditional or "")
        denied = [statement for statement in map(if_granted, about) if statement["Effect"] == "Deny"]
        expected = [{"Effect": "Deny", "Action": ["ec2:*"], "Resource": "*", "Condition": BY_CODE}]
        checks.that("network", f"the code of {name} may not use EC2", denied == expected, denied or "it may")


def check_restart(checks, stack):
    """Another value of Restart publishes new versions, and starts the functions again: parameters alone would not."""
    for name in FUNCTIONS:
        description = stack.properties(name).get("Description")
        checks.that("restart", f"{name} changes with Restart", "${Restart}" in json.dumps(description), description)
    versions = {target(version.get("FunctionName")): stack.value(version.get("Description"), Restart="2") for version in stack.of_type("AWS::Lambda::Version").values()}
    for name in FUNCTIONS:
        # The schedule calls `prune` without a version.
        expected = None if name == "PruneFunction" else "2"
        checks.that("restart", f"{name} has {'no versions' if expected is None else 'a new version with Restart'}", versions.get(name) == expected, versions.get(name))


def check_secrets(checks, stack, variables):
    """The functions that use symbol servers receive the names of their secrets and may read them; prune receives none."""
    # With 1, a function does not start without the secret; with 0, the secret has no effect.
    allowed = {name: variables[name].get("ALLOW_REQUEST_SOURCES") for name in FUNCTIONS}
    checks.that("secrets", "requests may define sources if there is a secret for them", all(value == {"Fn::If": ["HasRequestSourcesSecret", "1", "0"]} for value in allowed.values()), allowed["SymbolicateFunction"])
    for name in FUNCTIONS:
        told = {variable: kept for variable, kept in variables[name].items() if variable in SECRETS}
        read = {(action, where) for action, where in grants_of(stack, name) if action.startswith(("secretsmanager:", "ssm:"))}
        checks.that("secrets", f"{name} may read the headers for traces", OF_TRACES <= read, sorted(read))
        # `prune` has no versions of which an old one would serve beside a new one.
        former = name != "PruneFunction"
        checks.that("secrets", f"{name} may read {'what' if former else 'nothing that'} a deployment replaces", (read & FORMER_SECRETS == FORMER_SECRETS) if former else not read & FORMER_SECRETS, sorted(read))
        objects = {resource for action, resource in grants_of(stack, name) if action == "s3:GetObject" and resource.endswith("SourcesObject")}
        lists = {f"arn:${{AWS::Partition}}:s3:::{parameter}" for parameter in ("SourcesObject", "FormerSourcesObject")} if former else set()
        checks.that("secrets", f"{name} may read {'the list of sources, and the one that a deployment replaces' if former else 'no list of sources'}", objects == lists, sorted(objects))
        read = sorted(read - OF_TRACES - FORMER_SECRETS)
        if name == "PruneFunction":
            checks.that("secrets", "prune receives none and reads none", not told and not read, (told, read))
            continue
        wanted = {variable: {"Fn::If": [f"Has{parameter}", {"Ref": parameter}, default]} for variable, (parameter, default) in SECRETS.items()}
        wanted["SOURCES"]["Fn::If"][2] = {"Fn::If": ["HasSourcesObject", {"Fn::Sub": "s3://${SourcesObject}"}, "[]"]}
        checks.that("secrets", f"{name} receives their names", told == wanted, ", ".join(told))
        allowed = sorted((action, parameter) for parameter, _ in SECRETS.values() for action in READS_SECRETS)
        checks.that("secrets", f"{name} may read these secrets, and no others", read == allowed, read)


def check_references(checks, template):
    """`make deploy` keeps the grants of the references that it replaces: it knows each parameter that is one."""
    parameters = template.get("Parameters", {})
    references = {name for name, parameter in parameters.items() if "secretsmanager" in parameter.get("AllowedPattern", "")} - {"FormerSecrets"}
    kept = re.search(r"^secrets=\((.*)\)$", DEPLOY.read_text(), re.MULTILINE)
    found = set(kept[1].split()) if kept else set()
    checks.that("secrets", "infra/deploy keeps the grants of every secret that it replaces", found == references, ", ".join(sorted(found ^ references)))


def check_traces(checks, stack, variables):
    """By default no trace is exported; with the parameters, every function exports its traces to the same collector."""
    wanted = {"OTEL_EXPORTER_OTLP_ENDPOINT": {"Ref": "TraceEndpoint"}, "OTEL_EXPORTER_OTLP_HEADERS": {"Ref": "TraceHeadersSecret"}, "OTEL_TRACES_SAMPLER_ARG": {"Ref": "TraceRatio"}}
    for name in FUNCTIONS:
        told = {variable: variables[name].get(variable) for variable in wanted}
        checks.that("traces", f"{name} exports traces as the parameters say", told == wanted, told)
    defaults = [stack.parameters.get(name) for name in ("TraceEndpoint", "TraceHeadersSecret")]
    checks.that("traces", "no trace is exported by default", defaults == ["none", "none"], defaults)


def if_granted(statement):
    """Returns the statement of a conditional grant, assuming that the condition holds."""
    return statement["Fn::If"][1] if "Fn::If" in statement else statement


def grants(role):
    """Returns the permissions of a role: pairs of action and target, from the policies in the template."""
    return [
        (action, target(resource))
        for policy in role.get("Policies", [])
        for statement in map(if_granted, policy["PolicyDocument"]["Statement"])
        if statement.get("Effect") == "Allow"
        for action in as_list(statement.get("Action", []))
        for resource in as_list(statement.get("Resource", "nothing"))
    ]


def grants_of(stack, name):
    """Returns the permissions of a function."""
    return grants(stack.properties(target(stack.properties(name).get("Role", ""))))


def only_serves_http(stack, name):
    """Returns whether a function is invoked by the API alone: no queue and no schedule names it."""
    mappings = stack.of_type("AWS::Lambda::EventSourceMapping").values()
    schedules = stack.of_type("AWS::Scheduler::Schedule").values()
    invoked = [target(mapping["FunctionName"]) for mapping in mappings]
    invoked += [target(schedule["Target"]["Arn"]) for schedule in schedules]
    return name not in [called.removesuffix(ALIAS) for called in invoked]


def check_roles(checks, stack):
    """No role but those that are checked, and nothing but the gateway invokes a function by itself."""
    roles = stack.of_type("AWS::IAM::Role")
    of_functions = {target(stack.properties(name).get("Role", "")) for name in FUNCTIONS}
    checks.that("roles", "no roles but those of the functions, of the schedule and of deployments", set(roles) == of_functions | set(ROLES_OF_SERVICES), ", ".join(sorted(roles)))
    for name, role in roles.items():
        boundary = [stack.value(role.get("PermissionsBoundary"), PermissionsBoundary=chosen) for chosen in ("none", "arn:boundary")]
        checks.that("roles", f"{name} has the permissions boundary, if there is one", boundary == [None, "arn:boundary"], boundary)
    for name, (service, may) in ROLES_OF_SERVICES.items():
        role = roles.get(name, {})
        trusted = [principal for statement in role.get("AssumeRolePolicyDocument", {}).get("Statement", []) for principal in as_list(statement["Principal"]["Service"])]
        checks.that("roles", f"only {service} assumes {name}", trusted == [service], trusted)
        statements = [statement for policy in role.get("Policies", []) for statement in as_list(policy["PolicyDocument"]["Statement"])]
        granted = {(action, target(resource)) for statement in statements for action in as_list(statement["Action"]) for resource in as_list(statement["Resource"])}
        checks.that("roles", f"{name} may do what it has to, and nothing else", granted == may, granted or "nothing")
        has = {target(arn).rsplit("/", 1)[-1] for arn in role.get("ManagedPolicyArns", [])}
        checks.that("roles", f"{name} has no managed policy", not has, ", ".join(sorted(has)) or "none")
    for name in ("Symbolicate", "Derive"):
        deploys = target(stack.properties(f"{name}FunctionDeploymentGroup").get("ServiceRoleArn", ""))
        checks.that("roles", f"{name}Function is deployed with the role of its deployments", deploys == f"{name}DeploymentRole", deploys)
    permissions = stack.of_type("AWS::Lambda::Permission")
    sources = {target(permission["SourceArn"]) for permission in permissions.values()}
    checks.that("roles", "the gateway may invoke symbolicate for every route", any(source.endswith(":__ApiId__/__Stage__/*") for source in sources), ", ".join(sorted(sources)))
    others = [name for name, permission in permissions.items() if permission.get("Principal") != "apigateway.amazonaws.com" or target(permission["FunctionName"]) != f"SymbolicateFunction{ALIAS}"]
    checks.all("roles", "nothing else may invoke a function", others)


def check_grants(checks, stack):
    """Least privilege: each function has only the permissions that its flow needs."""
    granted = {name: grants_of(stack, name) for name in FUNCTIONS}

    def problems(name, forbidden):
        return [f"{action} on {resource}" for action, resource in granted[name] if forbidden(action, resource)]

    for name in FUNCTIONS:
        by_target = {}
        for action, resource in granted[name]:
            by_target.setdefault(resource, []).append(action.split(":")[1])
        for resource, actions in by_target.items():
            checks.that("grants", f"{name} on {resource}", True, ", ".join(actions))
        checks.all("grants", f"{name} has no wildcard action or resource", problems(name, lambda a, r: ("*" in a or r in ("*", "nothing")) and (a, r) not in OF_NETWORK))
        if not only_serves_http(stack, name):
            # An upload that it wrote would invoke it again.
            checks.all("grants", f"{name} never changes an upload", problems(name, lambda a, r: r.startswith("UploadsBucket") and a in WRITES))
        listed = {resource for action, resource in granted[name] if action == "s3:ListBucket"}
        # Without ListBucket, S3 responds with 403 for an absent key, as for a missing permission.
        # The list of sources is one key, which exists; the error of the function explains a 403.
        unlisted = [r for a, r in granted[name] if a == "s3:GetObject" and r.split("/")[0] not in listed and not r.endswith("SourcesObject")]
        checks.all("grants", f"{name} lists what it reads", unlisted)
        lent = problems(name, lambda a, r: a.startswith("sts:") or "SourceBuckets" in r)
        checks.that("grants", f"{name} has the roles and buckets of sources only if it is derive", bool(lent) == (name == "DeriveFunction"), lent)
        role = stack.properties(target(stack.properties(name).get("Role", "")))
        # With one less, logs, a key, a secret or a role could not be used; with one more, others could.
        elsewhere = {(action, resource) for action, resource in granted[name] if action.split(":")[0] not in ("dynamodb", "s3", "sqs")}
        differs = [f"{action} on {resource}" for action, resource in sorted(elsewhere ^ ELSEWHERE[name])]
        checks.all("grants", f"{name} has what it needs of logs, keys, secrets and roles, and no more", differs)
        managed = [target(arn).rsplit("/", 1)[-1] for arn in role.get("ManagedPolicyArns", [])]
        # Their grants are not in the template, so the checks above would not see them.
        checks.that("grants", f"{name} has no managed policy", not managed, ", ".join(managed))
        trusted = role.get("AssumeRolePolicyDocument", {}).get("Statement", [])
        trusts = [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}]
        keys = {resource for action, resource in granted[name] if action.startswith("kms:")}
        checks.that("grants", f"{name} uses the key of the account, and no other", keys == {"KmsKey"}, ", ".join(keys))
        checks.that("grants", f"only Lambda assumes the role of {name}", trusted == trusts, trusted)
        received = {resource for action, resource in granted[name] if action in RECEIVES}
        checks.that("grants", f"{name} receives the messages of its own queues only", received == (set(QUEUES) if name == "DeriveFunction" else set()), ", ".join(sorted(received)))

    checks.all("grants", "symbolicate deletes only attachments", problems("SymbolicateFunction", lambda a, r: a.startswith("s3:Delete") and r != "AttachmentsBucket/*"))
    statements = [statement for policy in stack.properties("SymbolicateRole").get("Policies", []) for statement in policy["PolicyDocument"]["Statement"]]
    denials = [statement for statement in statements if statement.get("Effect") == "Deny" and statement["Action"] != ["ec2:*"]]
    expected = [{"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": {"Fn::Sub": "${UploadsBucket.Arn}/*"}, "Condition": MAY_REPLACE}]
    checks.that("grants", "symbolicate never replaces an upload", denials == expected, denials)
    for name, actions in NOT_WITH_TOKENS.items():
        role = stack.properties(name.replace("Function", "Role"))
        statements = [statement for policy in role.get("Policies", []) for statement in policy["PolicyDocument"]["Statement"]]
        denials = [
            (statement["Action"], target(statement["Resource"]), statement.get("Condition"))
            for statement in statements
            if statement.get("Effect") == "Deny" and any(action.startswith("dynamodb:") for action in as_list(statement["Action"]))
        ]
        checks.that("grants", f"{name} issues no access tokens", denials == [(actions, "RecordsTable", OF_ACCESS_TOKENS)], denials)
    checks.all("grants", "symbolicate creates uploads and changes them in no other way", problems("SymbolicateFunction", lambda a, r: r.startswith("UploadsBucket") and a in WRITES - {"s3:PutObject"}))
    outside = lambda actions, *folders: lambda a, r: a in actions and r.startswith("CachesBucket") and r not in {f"CachesBucket/{folder}/*" for folder in folders}
    checks.all("grants", "symbolicate writes blobs only under requests/ and plain/", problems("SymbolicateFunction", outside(WRITES, "requests", "plain")))
    checks.all("grants", "symbolicate reads blobs only under derived/, plain/ and requests/", problems("SymbolicateFunction", outside({"s3:GetObject"}, "derived", "plain", "requests")))
    checks.all("grants", "derive reads blobs only under derived/ and copies/", problems("DeriveFunction", outside({"s3:GetObject"}, "derived", "copies")))
    deleted_outside = lambda a, r: a == "s3:DeleteObject" and r not in {f"CachesBucket/{folder}/*" for folder in ("derived", "copies", "plain")}
    checks.all("grants", "prune deletes blobs only under derived/, copies/ and plain/", problems("PruneFunction", deleted_outside))
    checks.all("grants", "derive deletes no blob", problems("DeriveFunction", lambda a, _: a.startswith("s3:Delete")))
    checks.all("grants", "derive writes blobs only under derived/ and copies/", problems("DeriveFunction", outside(WRITES, "derived", "copies")))
    # It checks whether uploads exist with `HeadObject`, which needs the permission to read them.
    checks.all("grants", "prune reads no cache", problems("PruneFunction", lambda a, r: a.startswith("s3:Get") and r != "UploadsBucket/*"))
    checks.all("grants", "prune writes no blob", problems("PruneFunction", lambda a, _: a.startswith("s3:Put")))
    checks.all("grants", "only prune scans", [name for name in FUNCTIONS if name != "PruneFunction" and any(a == "dynamodb:Scan" for a, _ in granted[name])])


def own_metrics():
    """Returns the names of the metrics that the functions write."""
    [listed] = re.findall(r"pub enum Metric \{(.*?)\n\}", OWN_METRICS.read_text(), re.DOTALL)
    return set(re.findall(r"^ +(\w+),$", listed, re.MULTILINE))


def unknown_metric(stack, namespace, metric, dimensions):
    """Returns what is wrong with a metric that is named; None if functions or resources of the template write it."""
    what = f"{namespace} {metric} of {', '.join(f'{name} {value}' for name, value in dimensions.items()) or 'the account'}"
    if namespace == "symdepot":
        of_this_stack = dimensions.get("Stack") == "AWS::StackName" and set(dimensions) <= {"Stack", "Kind"}
        return None if metric in own_metrics() and of_this_stack else what
    known, names = METRICS.get(namespace, ({}, set()))
    if metric not in names:
        return what
    if not dimensions:
        return None if (namespace, metric) in OF_THE_ACCOUNT else what
    if set(dimensions) == {"FunctionName", "Resource", "ExecutedVersion"}:
        version, function = stack.resources.get(dimensions["ExecutedVersion"], {}), dimensions["FunctionName"]
        is_of_function = version.get("Type") == "AWS::Lambda::Version" and target(version["Properties"]["FunctionName"]) == function
        return None if is_of_function and dimensions["Resource"] == f"{function}:live" else what
    if set(dimensions) != set(known):
        return what
    for name, value in dimensions.items():
        kind = known[name]
        exists = value in kind if isinstance(kind, set) else stack.resources.get(value, {}).get("Type") == kind
        if not exists:
            return what
    return None


def named_in(text):
    """Returns the resource that `${Name}` or `${Name.Attribute}` refers to; other text as it is."""
    reference = re.fullmatch(r"\$\{([\w:]+)(\.\w+)?\}", text)
    return reference[1] if reference else text


def metrics_of_alarm(alarm):
    """Returns the metrics that an alarm watches: namespace, name, dimensions."""
    stats = [entry["MetricStat"]["Metric"] for entry in alarm.get("Metrics", []) if "MetricStat" in entry] or [alarm]
    return [(m.get("Namespace"), m.get("MetricName"), {d["Name"]: target(d["Value"]) for d in m.get("Dimensions", [])}) for m in stats]


def check_alarms(checks, stack):
    alarms = stack.of_type("AWS::CloudWatch::Alarm")
    for name, watched in WATCHED.items():
        found = {(metric, next(iter(dimensions.values()), None)) for _, metric, dimensions in metrics_of_alarm(alarms.get(name, {}))}
        shown = ", ".join(sorted(f"{metric} of {of or 'the account'}" for metric, of in found))
        checks.that("alarms", f"{name} watches what its name says", found == watched, shown)
    unknown = [f"{name}: {what}" for name, alarm in alarms.items() for metric in metrics_of_alarm(alarm) if (what := unknown_metric(stack, *metric))]
    checks.all("alarms", "every alarm watches metrics that are written", unknown)
    for name, alarm in alarms.items():
        entries = {entry["Id"]: entry for entry in alarm.get("Metrics", [])}
        if not entries:
            continue
        # The names in an expression: its own functions are upper case.
        used = {word for entry in entries.values() for word in re.findall(r"\b[a-z]+\b", re.sub(r"\$\{\w+\}", "", expression_of(stack, entry)))}
        shown = [id for id, entry in entries.items() if entry.get("ReturnData", True)]
        checks.that("alarms", f"{name} compares one value, of all that it reads", len(shown) == 1 and used | set(shown) == set(entries), ", ".join(sorted(used | set(shown))))
    for name in ("SymbolicateFunction", "DeriveFunction"):
        group = stack.properties(f"{name}DeploymentGroup")
        versions = [dimensions for alarm in alarms.values() for _, _, dimensions in metrics_of_alarm(alarm) if dimensions.get("FunctionName") == name and "ExecutedVersion" in dimensions]
        watching, at_once = ([target(alarm["Name"]) for alarm in (stack.value(group.get("AlarmConfiguration"), **chosen) or {}).get("Alarms", [])] for chosen in ({}, {"Deployment": "AllAtOnce"}))
        rolls_back = "DEPLOYMENT_STOP_ON_ALARM" in group.get("AutoRollbackConfiguration", {}).get("Events", [])
        exist = watching and all(alarm in alarms and stack.exists(alarm) for alarm in watching)
        checks.that("alarms", f"a new version of {name} is rolled back by an alarm", rolls_back and exist, ", ".join(watching))
        # Those of the old version would roll back their own fix.
        counted = [dimensions for alarm in watching for _, _, dimensions in metrics_of_alarm(alarms.get(alarm, {}))]
        checks.that("alarms", f"only its own errors roll a new version of {name} back", counted and counted == versions, counted)
        # The alarm does not exist then.
        checks.that("alarms", f"{name} is not rolled back with AllAtOnce", not at_once, ", ".join(at_once))
    check_errors(checks, stack, alarms)
    # The age includes the time of a build, and the pauses before the second and the third receive (30 and 60 s): a message
    # that was received three times does not count until it is deleted. Source: SQS developer guide, "Available CloudWatch
    # metrics for Amazon SQS".
    timeout = stack.properties("DeriveFunction").get("Timeout", 3)
    normal = timeout + 30 + 60
    for queue in QUEUES:
        threshold = alarms.get(f"{queue}AgeAlarm", {}).get("Threshold", 0)
        checks.that("alarms", f"{queue}AgeAlarm is not raised by a long build that failed before", threshold > normal, f"{threshold} s, {normal} s")
    # In a new account, the queues run builds in seven of ten runs; prune, and one request, need others.
    mappings = stack.of_type("AWS::Lambda::EventSourceMapping").values()
    builds = sum(stack.value(mapping.get("ScalingConfig", {}).get("MaximumConcurrency"), AccountConcurrency=10) or 0 for mapping in mappings)
    raised = stack.value(alarms.get("ConcurrencyAlarm", {}).get("Threshold", 0), AccountConcurrency=10) * 10 / 100
    checks.that("alarms", "ConcurrencyAlarm is not raised by the builds of an upload in a new account", raised > builds + 2, f"{raised:g} runs, {builds} builds")
    # Ten metrics of alarms are free in an account. Source: aws.amazon.com/cloudwatch/pricing, free tier.
    charged = sum(len(metrics_of_alarm(alarm)) for name, alarm in alarms.items() if stack.exists(name))
    checks.that("alarms", "by default, they read at most ten metrics, which are free", charged <= 10, charged)
    deaf = [name for name, alarm in alarms.items() if not alarm.get("AlarmActions")]
    checks.all("alarms", "every alarm has an action", deaf)
    # Without data, a function did not run. Everything else is fine without data.
    missing = {name for name, alarm in alarms.items() if alarm.get("TreatMissingData") != "notBreaching"}
    breaching = alarms.get("PruneMissedAlarm", {}).get("TreatMissingData") == "breaching"
    checks.that("alarms", "only the alarm of the schedule is raised without data", breaching and missing == {"PruneMissedAlarm"}, ", ".join(missing))
    check_estimate(checks, stack, alarms.get("DailyCostAlarm", {}))


def check_errors(checks, stack, alarms):
    """An error is counted when its invocation ends, for the minute in which it began: an alarm that looks back for less
    never sees that a function was ended at its time limit."""
    for name, alarm in alarms.items():
        if alarm.get("MetricName") != "Errors":
            continue
        function = next(target(dimension["Value"]) for dimension in alarm["Dimensions"] if dimension["Name"] == "FunctionName")
        seconds, timeout = alarm["Period"] * alarm["EvaluationPeriods"], stack.properties(function).get("Timeout", 3)
        checks.that("alarms", f"{name} sees an invocation that was ended at its time limit", seconds >= timeout + SECONDS_FOR_METRICS, f"{seconds} s, {timeout} s")
        # Without it, every minute would have to have an error.
        needed = alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"])
        checks.that("alarms", f"{name} is raised by one error", needed == 1, needed)


def expression_of(stack, entry, **chosen):
    """Returns the expression of a metric, with placeholders, for chosen parameters; none if it is read from a metric."""
    expression = stack.value(entry.get("Expression", ""), **chosen)
    return expression["Fn::Sub"] if isinstance(expression, dict) else expression


def check_estimate(checks, stack, alarm):
    """The estimate of the daily cost is what the amounts cost, computed from the prices."""
    prices = json.loads(PRICES.read_text())["prices"]
    amounts = {"symbolicate": 3.6e9, "derive": 7.2e8, "requests": 1e8, "writes": 1e9, "logged": 5e11}
    for architecture in ("arm64", "x86_64"):
        values = dict(amounts)
        for entry in alarm.get("Metrics", []):
            if "Expression" not in entry:
                continue
            text = expression_of(stack, entry, Architecture=architecture)
            text = re.sub(r"\$\{(\w+)\}", lambda match: str(stack.parameters.get(match[1])), text)
            functions = {"__builtins__": {}, "FILL": lambda amount, _: amount, "SUM": sum}
            try:
                values[entry["Id"]] = eval(text, functions, values)
            except (NameError, SyntaxError, TypeError) as error:
                values[entry["Id"]] = error
        memory = {name: int(stack.value(stack.properties(f"{name.title()}Function").get("MemorySize"))) for name in ("symbolicate", "derive")}
        seconds = {name: amounts[name] / 1000 for name in memory}
        scratch = int(stack.parameters.get("DeriveScratch", 0)) - 512
        expected = (
            sum(seconds[name] * memory[name] / 1024 for name in memory) * prices[f"lambda_gb_second_{architecture}"]
            + seconds["derive"] * scratch / 1024 * prices["lambda_scratch_gb_second"]
            + amounts["requests"] * (prices["http_api_request"] + prices["lambda_request"])
            + amounts["writes"] * prices["dynamodb_write_unit"]
            + amounts["logged"] / 1e9 * prices["logs_gb"]
        )
        found = values.get("dollars")
        right = isinstance(found, float) and abs(found - expected) < expected * 0.0001
        checks.that("alarms", f"DailyCostAlarm estimates with the prices of {PRICES.name} ({architecture})", right, f"{found}, {expected:.4f}")


def filled(stack, text, **chosen):
    """Returns the pattern of a Fn::Sub, in which its variables, if it has any, are replaced for chosen parameters."""
    if not isinstance(text.get("Fn::Sub"), list):
        return text.get("Fn::Sub", "")
    pattern, variables = text["Fn::Sub"]
    for name, variable in variables.items():
        value = stack.value(variable, **chosen)
        pattern = pattern.replace(f"${{{name}}}", value["Fn::Sub"] if isinstance(value, dict) else value)
    return pattern


def check_dashboard(checks, stack):
    """The dashboard is JSON, shows every alarm, and names only metrics and log groups that exist."""
    for more_alarms in ("off", "on"):
        for deployment in ("AllAtOnce", stack.parameters["Deployment"]):
            check_dashboard_with(checks, stack, {"MoreAlarms": more_alarms, "Deployment": deployment})


def check_dashboard_with(checks, stack, chosen):
    """Checks the dashboard of a stack for parameters that choose alarms."""
    shown = ", ".join(f"{name}={value}" for name, value in chosen.items())
    dashboards = stack.of_type("AWS::CloudWatch::Dashboard")
    checks.that("dashboard", "exactly one", len(dashboards) == 1, ", ".join(dashboards))
    for name, dashboard in dashboards.items():
        # Dashboards belong to the account: their names would conflict with those of other stacks and regions.
        named = json.dumps(dashboard.get("DashboardName"))
        checks.that("dashboard", "its name has the stack and the region", "${AWS::StackName}" in named and "${AWS::Region}" in named, named)
        body = filled(stack, dashboard.get("DashboardBody", {}), **chosen)
        try:
            widgets = json.loads(body)["widgets"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            checks.that("dashboard", "its body is JSON", False, error)
            continue
        checks.that("dashboard", "its body is JSON", True, f"{len(widgets)} widgets")
        problems, alarms, places, searched, groups, counted, stored = [], set(), [], set(), [], set(), set()
        for widget in widgets:
            properties = widget["properties"]
            title = properties.get("title")
            places.append({(x, y) for x in range(widget["x"], widget["x"] + widget["width"]) for y in range(widget["y"], widget["y"] + widget["height"])})
            if widget["x"] + widget["width"] > 24:
                problems.append(f"{title} is wider than the dashboard")
            if widget["type"] == "alarm":
                alarms |= {named_in(alarm) for alarm in properties["alarms"]}
                continue
            if properties.get("region") != "${AWS::Region}":
                problems.append(f"{title} is not of the stack's region")
            if widget["type"] == "log":
                groups += [named_in(group) for group in re.findall(r"SOURCE '([^']*)'", properties["query"])] or [f"no log group in {title}"]
                continue
            for row in properties["metrics"]:
                if isinstance(row[0], dict):
                    search = re.fullmatch(r"SEARCH\('\{symdepot,Stack,Kind\} MetricName=\"(\w+)\" Stack=\"\$\{AWS::StackName\}\"', '\w+', \d+\)", row[0].get("expression", ""))
                    metric = ("symdepot", search[1], {"Stack": "AWS::StackName", "Kind": "any"}) if search else ("", json.dumps(row[0]), {})
                else:
                    names = [part for part in row if isinstance(part, str)]
                    metric = (names[0], names[1], {key: named_in(value) for key, value in zip(names[2::2], names[3::2])})
                stored |= {metric[2].get("StorageType")} if metric[2].get("BucketName") == "UploadsBucket" else set()
                searched |= {metric[1]} if metric[0] == "symdepot" else set()
                counted |= set() if isinstance(row[0], dict) else {json.dumps(metric)}
                problems += filter(None, [unknown_metric(stack, *metric)])
        checks.all("dashboard", "every metric that it names is written", problems)
        # Three dashboards are free in an account, with so many metrics. Source: aws.amazon.com/cloudwatch/pricing, free
        # tier. Whether those that a search finds count is not documented (docs/cost.md).
        checks.that("dashboard", "it names at most 50 metrics, besides those that it searches", len(counted) <= 50, len(counted))
        overlapping = [widgets[b]["properties"].get("title") for a in range(len(places)) for b in range(a + 1, len(places)) if places[a] & places[b]]
        checks.all("dashboard", "its widgets do not overlap", overlapping)
        existing = {name for name in stack.of_type("AWS::CloudWatch::Alarm") if stack.exists(name, **chosen)}
        unshown = sorted(existing ^ alarms)
        checks.that("dashboard", f"it shows every alarm, with {shown}", not unshown, ", ".join(unshown) or f"{len(alarms)} alarms")
        checks.that("dashboard", "it shows the uploads of every storage class", stored == STORAGE_OF_UPLOADS, ", ".join(sorted(stored)))
        hidden = sorted(own_metrics() - searched)
        checks.that("dashboard", "it shows every metric of the functions", not hidden, ", ".join(hidden) or f"{len(searched)} metrics")
        logged = {target(stack.properties(function).get("LoggingConfig", {}).get("LogGroup", "")) for function in FUNCTIONS}
        checks.that("dashboard", "its queries read the log of the functions", groups and set(groups) == logged, ", ".join(groups))


def check_policies(checks, stack, outputs):
    """The policies in the outputs are JSON, and permit what a caller and an uploader need, and nothing else: a caller may
    neither issue tokens nor see what is about all scopes."""
    key = "arn:aws:kms:eu-central-1:111122223333:key/k"
    api = "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${Api}/*"
    wanted = {
        "CallerPolicy": {
            ("Allow", "execute-api:Invoke"): [api],
            ("Deny", "execute-api:Invoke"): [f"{api}/*/{path}" for path in ("tokens", "tokens/*", "rollout")],
        },
        "UploaderPolicy": {("Allow", action): ["${UploadsBucket.Arn}/SCOPE/*"] for action in ("s3:PutObject", "s3:AbortMultipartUpload")},
    }
    with_key = {"UploaderPolicy": {("Allow", action): [key] for action in ("kms:GenerateDataKey", "kms:Decrypt")}}
    for name, expected in wanted.items():
        for chosen, expected in (("none", expected), (key, expected | with_key.get(name, {}))):
            text = stack.value(outputs.get(name, {}).get("Value"), KmsKey=chosen)["Fn::Sub"].replace("${KmsKey}", chosen)
            try:
                granted = {(statement["Effect"], action): as_list(statement["Resource"]) for statement in json.loads(text)["Statement"] for action in as_list(statement["Action"])}
            except (json.JSONDecodeError, KeyError) as error:
                granted = error
            checks.that("policies", f"{name} is the least {'with a key' if chosen == key else 'without a key'}", granted == expected, granted)
    roles = {name: outputs.get(f"{name.replace('Function', 'Role')}Arn", {}).get("Value") for name in FUNCTIONS}
    arns = {name: {"Fn::GetAtt": stack.properties(name).get("Role", {}).get("Fn::GetAtt")} for name in FUNCTIONS}
    checks.that("outputs", "the roles of the functions can be named in the policies of keys and of other roles", roles == arns, roles)
    # CloudFormation names a group without a name after the stack and the resource.
    [statement] = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE) if "kms:EncryptionContext" in block]
    patterns = [arn.partition(":log-group:")[2] for arn in statement["Condition"]["ArnLike"]["kms:EncryptionContext:aws:logs:arn"]]
    groups = {name: group.get("LogGroupName", {}).get("Fn::Sub", f"${{AWS::StackName}}-{name}-1").replace("${AWS::StackName}", "symdepot") for name, group in stack.of_type("AWS::Logs::LogGroup").items()}
    strangers = [group for group in groups.values() if not any(fnmatch.fnmatchcase(group, pattern) for pattern in patterns)]
    checks.all("policies", f"the statement in {README.name} for a key allows CloudWatch Logs to use it for every log group", strangers)
    queue = outputs.get("DeadLetters", {}).get("Value")
    checks.that("outputs", "DeadLetters is the URL of the queue, which `symdepot redrive` needs", queue == {"Ref": "DeadLetters"}, queue)


def mistakes():
    """Returns the mistakes to seed: a description, a function that makes it, and a pattern that a finding must match."""

    def resource(template, name):
        return template["Resources"][name]["Properties"]

    def statements(template, name):
        role = resource(template, name.replace("Function", "Role"))
        return role["Policies"][0]["PolicyDocument"]["Statement"]

    def granting(template, name, action):
        return next(statement for statement in statements(template, name) if action in statement.get("Action", []))

    def denying(template, name, action):
        return next(one for one in statements(template, name) if (inner := if_granted(one))["Effect"] == "Deny" and action in inner["Action"])

    def event(template, name, key):
        return resource(template, name)["Events"][key]["Properties"]

    def allow(action, where):
        return {"Effect": "Allow", "Action": [action], "Resource": {"Fn::Sub": where}}

    def access_log(template, old, new):
        settings = resource(template, "Api")["AccessLogSettings"]
        settings["Format"] = settings["Format"].replace(old, new)

    def body(template, change):
        text = resource(template, "DashboardOfStack")["DashboardBody"]
        text["Fn::Sub"][0] = change(text["Fn::Sub"][0])

    return [
        ("a Ref to nothing", lambda t: granting(t, "PruneFunction", "dynamodb:Scan").update(Resource={"Ref": "RecordTable"}), "RecordTable"),
        ("a timeout of 1000 s", lambda t: resource(t, "DeriveFunction").update(Timeout=1000), "1000"),
        ("a route that anyone may call", lambda t: event(t, "SymbolicateFunction", "Every").update(Auth={"Authorizer": "NONE"}), "AWS_IAM"),
        ("one more route without an authorizer", lambda t: event(t, "SymbolicateFunction", "InScope").update(Path="/open/{proxy+}"), "no routes but"),
        ("JWTs for any audience", lambda t: t["Resources"]["Api"]["Properties"]["DefinitionBody"]["components"]["securitySchemes"]["Issuer"]["Fn::If"][1]["x-amazon-apigateway-authorizer"]["jwtConfiguration"].pop("audience"), "this audience"),
        ("a runtime that does not exist", lambda t: t["Globals"]["Function"].update(Runtime="provided.al2026"), "provided.al2026"),
        ("an unknown property of an event", lambda t: event(t, "DeriveFunction", "Eager").update(BatchSizes=1), "Eager"),
        ("a visibility below the timeout", lambda t: resource(t, "EagerQueue").update(VisibilityTimeout=600), "600"),
        ("a rate with a wrong plural", lambda t: event(t, "PruneFunction", "Hourly").update(ScheduleExpression="rate(1 hours)"), r"rate\(1 hours\)"),
        ("a policy statement without a resource", lambda t: statements(t, "SymbolicateFunction")[0].pop("Resource"), "Resource"),
        (
            "an index on an attribute that is not defined",
            lambda t: resource(t, "RecordsTable").update(GlobalSecondaryIndexes=[{
                "IndexName": "by_use",
                "KeySchema": [{"AttributeName": "last_used_at", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }]),
            "last_used_at|AttributeDefinitions",
        ),
        ("no expiry in the table", lambda t: resource(t, "RecordsTable").pop("TimeToLiveSpecification"), "TTL"),
        ("removals without events", lambda t: resource(t, "UploadsBucket")["NotificationConfiguration"]["QueueConfigurations"].pop(1), "ObjectRemoved"),
        ("a queue without a redrive policy", lambda t: resource(t, "RefreshQueue").pop("RedrivePolicy"), "RefreshQueue moves failed messages"),
        ("failures of whole batches", lambda t: event(t, "DeriveFunction", "Uploads").pop("FunctionResponseTypes"), "UploadsQueue accepts failures"),
        ("a queue without a concurrency limit", lambda t: event(t, "DeriveFunction", "Refresh").pop("ScalingConfig"), "RefreshQueue has its own concurrency"),
        ("a named stage", lambda t: resource(t, "Api").update(StageName="prod"), "prod"),
        ("an API without authorization", lambda t: resource(t, "Api").pop("Auth"), "Unable to set Authorizer"),
        ("prune that reads blobs", lambda t: statements(t, "PruneFunction").append(allow("s3:GetObject", "${CachesBucket.Arn}/*")), "s3:GetObject on CachesBucket"),
        ("symbolicate that deletes", lambda t: statements(t, "SymbolicateFunction").append(allow("s3:DeleteObject", "${CachesBucket.Arn}/requests/*")), "symbolicate deletes"),
        ("symbolicate that writes anywhere", lambda t: statements(t, "SymbolicateFunction").append(allow("s3:PutObject", "${CachesBucket.Arn}/*")), "only under requests/ and plain/"),
        ("derive that writes uploads", lambda t: statements(t, "DeriveFunction").append(allow("s3:PutObject", "${UploadsBucket.Arn}/*")), "DeriveFunction never changes an upload"),
        ("prune that removes uploads", lambda t: statements(t, "PruneFunction").append(allow("s3:DeleteObject", "${UploadsBucket.Arn}/*")), "PruneFunction never changes an upload"),
        ("symbolicate that writes derived caches", lambda t: statements(t, "SymbolicateFunction").append(allow("s3:PutObject", "${CachesBucket.Arn}/derived/*")), "only under requests/ and plain/"),
        ("derive that writes requests", lambda t: statements(t, "DeriveFunction").append(allow("s3:PutObject", "${CachesBucket.Arn}/requests/*")), "only under derived/ and copies/"),
        ("symbolicate that reads copies", lambda t: statements(t, "SymbolicateFunction").append(allow("s3:GetObject", "${CachesBucket.Arn}/copies/*")), "symbolicate reads blobs only"),
        ("derive that reads requests", lambda t: statements(t, "DeriveFunction").append(allow("s3:GetObject", "${CachesBucket.Arn}/requests/*")), "derive reads blobs only"),
        ("prune that deletes requests", lambda t: statements(t, "PruneFunction").append(allow("s3:DeleteObject", "${CachesBucket.Arn}/requests/*")), "prune deletes blobs only"),
        ("derive without a reservation", lambda t: resource(t, "DeriveFunction").pop("ReservedConcurrentExecutions"), "reserved for derive"),
        ("a queue that outgrows the reservation", lambda t: event(t, "DeriveFunction", "Eager")["ScalingConfig"].update(MaximumConcurrency=50), "reserved for derive"),
        ("a queue that may take all runs of a new account", lambda t: event(t, "DeriveFunction", "Uploads")["ScalingConfig"].update(MaximumConcurrency=10), "the queues run seven at most"),
        ("requests that hold all runs of an account", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(QUEUED_WAIT="none"), "requests leave runs to builds"),
        ("chains of messages that Lambda stops", lambda t: resource(t, "DeriveFunction").pop("RecursiveLoop"), "chains of messages"),
        ("a setting that AWS GovCloud refuses", lambda t: resource(t, "DeriveFunction").update(RecursiveLoop="Allow"), "RecursiveLoop is not set where"),
        ("a setting that one region refuses", lambda t: t["Conditions"]["HasLoopDetection"]["Fn::Not"][0]["Fn::Or"].pop(), "RecursiveLoop is not set where"),
        ("a reservation that infra/deploy does not know", lambda t: resource(t, "PruneFunction")["ReservedConcurrentExecutions"]["Fn::If"].__setitem__(1, 2), "infra/deploy knows what Reserve=builds reserves: 36, 37"),
        ("functions in a network by default", lambda t: t["Globals"]["Function"].update(VpcConfig=t["Globals"]["Function"]["VpcConfig"]["Fn::If"][1]), "in the subnets of the parameters"),
        ("functions without their security groups", lambda t: t["Globals"]["Function"]["VpcConfig"]["Fn::If"][1].pop("SecurityGroupIds"), "in the subnets of the parameters"),
        (
            "network interfaces that Lambda may not delete after the subnets are removed",
            lambda t: statements(t, "PruneFunction").append({"Fn::If": ["HasSubnetIds", statements(t, "PruneFunction").pop(statements(t, "PruneFunction").index(granting(t, "PruneFunction", "ec2:DeleteNetworkInterface"))), {"Ref": "AWS::NoValue"}]}),
            "Lambda may disconnect PruneFunction",
        ),
        ("code that changes network interfaces", lambda t: statements(t, "DeriveFunction").remove(denying(t, "DeriveFunction", "ec2:*")), "the code of DeriveFunction may not use EC2"),
        ("Lambda may not connect a function", lambda t: denying(t, "SymbolicateFunction", "ec2:*").pop("Condition"), "the code of SymbolicateFunction may not use EC2"),
        ("an old version that may not read its secret", lambda t: statements(t, "SymbolicateFunction").remove(next(one for one in statements(t, "SymbolicateFunction") if one.get("Fn::If", [None])[0] == "HasFormerSecrets")), "SymbolicateFunction may read what a deployment replaces"),
        ("an old version that may not read its list of sources", lambda t: statements(t, "DeriveFunction").remove(next(one for one in statements(t, "DeriveFunction") if one.get("Fn::If", [None])[0] == "HasFormerSourcesObject")), "DeriveFunction may read the list of sources, and the one that a deployment replaces"),
        ("former secrets of all functions", lambda t: statements(t, "PruneFunction").append({"Effect": "Allow", "Action": ["ssm:GetParameter"], "Resource": {"Fn::Split": [",", {"Ref": "FormerSecrets"}]}}), "PruneFunction may read nothing that a deployment replaces"),
        ("a reference whose grant infra/deploy does not keep", lambda t: t["Parameters"].update(SpareSecret=dict(t["Parameters"]["SourcesSecret"])), "infra/deploy keeps the grants of every secret.*SpareSecret"),
        ("an alarm that never sees the end of a build at its time limit", lambda t: resource(t, "DeriveErrorsAlarm").update(EvaluationPeriods=1), "DeriveErrorsAlarm sees an invocation that was ended at its time limit: 60 s, 900 s"),
        ("a rollback that misses a build that was ended at its time limit", lambda t: resource(t, "DeriveRollbackAlarm").update(EvaluationPeriods=15), "DeriveRollbackAlarm sees an invocation"),
        ("an alarm that needs an error in each of twenty minutes", lambda t: resource(t, "DeriveErrorsAlarm").pop("DatapointsToAlarm"), "DeriveErrorsAlarm is raised by one error: 20"),
        ("a secret without an effect", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(ALLOW_REQUEST_SOURCES="0"), "requests may define sources if there is a secret"),
        ("symbolicate that replaces uploads", lambda t: statements(t, "SymbolicateFunction").remove(denying(t, "SymbolicateFunction", "s3:PutObject")), "symbolicate never replaces an upload"),
        ("derive that issues access tokens", lambda t: statements(t, "DeriveFunction").remove(denying(t, "DeriveFunction", "dynamodb:*")), "DeriveFunction issues no access tokens"),
        ("derive that may do nothing in the table", lambda t: denying(t, "DeriveFunction", "dynamodb:*").pop("Condition"), "DeriveFunction issues no access tokens"),
        ("prune that may not remove expired tokens", lambda t: denying(t, "PruneFunction", "dynamodb:PutItem")["Action"].append("dynamodb:DeleteItem"), "PruneFunction issues no access tokens"),
        ("the output of another role", lambda t: t["Outputs"]["PruneRoleArn"].update(Value={"Fn::GetAtt": "DeriveRole.Arn"}), "the roles of the functions can be named"),
        ("uploads in parts that symbolicate may not begin", lambda t: denying(t, "SymbolicateFunction", "s3:PutObject")["Condition"].pop("Bool"), "symbolicate never replaces an upload"),
        ("uploads that cost the same for ever", lambda t: resource(t, "UploadsBucket")["LifecycleConfiguration"]["Rules"].pop(1), "large uploads that are not read cost less"),
        ("small uploads that cost more", lambda t: resource(t, "UploadsBucket")["LifecycleConfiguration"]["Rules"][1].pop("ObjectSizeGreaterThan"), "large uploads that are not read cost less"),
        ("an access log that fills a policy of the account", lambda t: resource(t, "AccessLogs").pop("LogGroupName"), "a name that no policy of the account lists"),
        ("an access log whose name a former stack has", lambda t: resource(t, "AccessLogs").update(LogGroupName={"Fn::Sub": "/aws/vendedlogs/${AWS::StackName}-access"}), "a name that no policy of the account lists"),
        ("an access log for which the policy of a key has no statement", lambda t: resource(t, "AccessLogs").update(LogGroupName={"Fn::Sub": "/aws/vendedlogs/access-${AWS::StackName}-${Api}"}), "CloudWatch Logs to use it for every log group: /aws/vendedlogs/access"),
        ("an access log that goes with the stack", lambda t: t["Resources"]["AccessLogs"].update(DeletionPolicy="Delete"), "logs say who called also when the stack is deleted"),
        ("logs that a change of their name deletes", lambda t: t["Resources"]["Logs"].update(UpdateReplacePolicy="Delete"), "logs say who called also when the stack is deleted"),
        ("requests without their invocation", lambda t: access_log(t, '"invocation":"$context.awsEndpointRequestId",', ""), "the access log names the invocation"),
        ("an alarm on the runs that others have reserved", lambda t: resource(t, "ConcurrencyAlarm")["Metrics"][0]["MetricStat"]["Metric"].update(MetricName="ConcurrentExecutions"), "ConcurrencyAlarm watches what its name says"),
        ("a dashboard without the uploads that are not read", lambda t: body(t, lambda text: text.replace("IntelligentTieringIAStorage", "StandardStorage")), "the uploads of every storage class"),
        ("a rollback by the errors of the old version", lambda t: resource(t, "DeriveRollbackAlarm").update(Dimensions=resource(t, "DeriveRollbackAlarm")["Dimensions"][:1]), "only its own errors roll a new version of DeriveFunction back"),
        ("a rollback by the errors of another function", lambda t: resource(t, "SymbolicateRollbackAlarm").update(Dimensions=resource(t, "DeriveRollbackAlarm")["Dimensions"]), "Circular Dependencies|SymbolicateRollbackAlarm watches"),
        ("a rollback by the errors of another alias", lambda t: resource(t, "DeriveRollbackAlarm")["Dimensions"][1].update(Value={"Fn::Sub": "${DeriveFunction}:other"}), "metrics that are written: DeriveRollbackAlarm"),
        ("alarms of deployments that do not exist", lambda t: t["Resources"]["DeriveRollbackAlarm"].pop("Condition"), "shows every alarm, with MoreAlarms=off, Deployment=AllAtOnce: DeriveRollbackAlarm"),
        ("derive deployed before its readers", lambda t: t["Resources"]["DeriveFunction"].pop("DependsOn"), "after its readers"),
        ("failed messages that wait for the queue's visibility timeout", lambda t: granting(t, "DeriveFunction", "sqs:ChangeMessageVisibility").update(Action=["sqs:SendMessage"]), "visibility timeout of failed messages"),
        ("derive that deletes blobs", lambda t: statements(t, "DeriveFunction").append(allow("s3:DeleteObject", "${CachesBucket.Arn}/derived/*")), "derive deletes"),
        ("prune that receives the sources", lambda t: resource(t, "PruneFunction").update(Environment={"Variables": {"SOURCES": "[]"}}), "prune receives none"),
        ("prune that reads a secret", lambda t: statements(t, "PruneFunction").append({"Effect": "Allow", "Action": ["ssm:GetParameter"], "Resource": {"Ref": "SourcesSecret"}}), "prune receives none"),
        ("a secret for every function", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(SOURCES="[]"), "prune receives none"),
        ("traces that leave the account by default", lambda t: t["Parameters"]["TraceEndpoint"].update(Default="https://collector.example"), "no trace is exported by default"),
        ("a function that ignores the collector", lambda t: resource(t, "DeriveFunction")["Environment"]["Variables"].update(OTEL_EXPORTER_OTLP_ENDPOINT="none"), "exports traces as the parameters say"),
        ("derive that reads every secret", lambda t: statements(t, "DeriveFunction").append({"Effect": "Allow", "Action": ["secretsmanager:GetSecretValue"], "Resource": "arn:aws:secretsmanager:eu-central-1:1:secret:x"}), "may read these secrets, and no others"),
        ("symbolicate that may not read its secret", lambda t: statements(t, "SymbolicateFunction").pop(), "may read these secrets, and no others"),
        ("symbolicate that assumes the roles of sources", lambda t: statements(t, "SymbolicateFunction").insert(0, {"Effect": "Allow", "Action": ["sts:AssumeRole"], "Resource": {"Ref": "SourceRoles"}}), "only if it is derive"),
        ("AWS's policy for readers of queues", lambda t: resource(t, "DeriveRole").update(ManagedPolicyArns=["arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole"]), "DeriveFunction has no managed policy"),
        ("a role that other services may assume", lambda t: resource(t, "DeriveRole")["AssumeRolePolicyDocument"]["Statement"][0]["Principal"].update(Service="ec2.amazonaws.com"), "only Lambda assumes the role of DeriveFunction"),
        ("derive that receives dead letters", lambda t: granting(t, "DeriveFunction", "sqs:ReceiveMessage")["Resource"].append({"Fn::GetAtt": "DeadLetters.Arn"}), "DeriveFunction receives the messages of its own queues"),
        ("prune that reads the queues", lambda t: granting(t, "PruneFunction", "sqs:SendMessage").update(Action=["sqs:SendMessage", "sqs:ReceiveMessage"]), "PruneFunction receives the messages of its own queues"),
        ("a bucket name that is the same in every region", lambda t: resource(t, "CachesBucket").update(BucketName={"Fn::Sub": "${AWS::StackName}-caches-${AWS::AccountId}"}), "the name of CachesBucket"),
        ("a bucket policy for the other bucket", lambda t: resource(t, "CachesBucketPolicy").update(Bucket={"Ref": "UploadsBucket"}), "CachesBucket refuses"),
        ("attachments that are kept", lambda t: resource(t, "AttachmentsBucket")["LifecycleConfiguration"]["Rules"].pop(), "attachments expire after a day"),
        ("attachments that are kept for a month", lambda t: resource(t, "AttachmentsBucket")["LifecycleConfiguration"]["Rules"][1].update(ExpirationInDays=30), "attachments expire after a day"),
        ("attachments whose rule is off", lambda t: resource(t, "AttachmentsBucket")["LifecycleConfiguration"]["Rules"][1].update(Status="Disabled"), "attachments expire after a day"),
        (
            "attachments that invoke derive",
            lambda t: resource(t, "AttachmentsBucket").update(NotificationConfiguration={"QueueConfigurations": [{"Event": "s3:ObjectCreated:*", "Queue": {"Fn::GetAtt": "UploadsQueue.Arn"}}]}),
            "attachments cause no events",
        ),
        ("a scratch space that does not follow from /tmp", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(SCRATCH_BYTES="21474836480"), "SCRATCH_BYTES"),
        ("functions that are told another memory of derive", lambda t: resource(t, "DeriveFunction").update(MemorySize=2048), "DERIVE_MEMORY_MB"),
        ("a default that a new account refuses", lambda t: t["Parameters"]["DeriveMemory"].update(Default=10240), "fits into a new account"),
        ("a reservation that a new account refuses", lambda t: resource(t, "PruneFunction").update(ReservedConcurrentExecutions=1), "PruneFunction reserves nothing"),
        ("a parameter without a default", lambda t: t["Parameters"]["LogDays"].pop("Default"), "every parameter has a default"),
        ("a parameter without a use", lambda t: t["Parameters"].update(Spare={"Type": "String", "Default": "none"}), "every parameter is used"),
        ("blobs that may be overwritten", lambda t: resource(t, "CachesBucketPolicy")["PolicyDocument"]["Statement"].pop(), "never overwritten"),
        ("parts of uploads that need a condition", lambda t: resource(t, "CachesBucketPolicy")["PolicyDocument"]["Statement"][1]["Condition"].pop("Bool"), "never overwritten"),
        ("no access log", lambda t: resource(t, "Api").pop("AccessLogSettings"), "no access log"),
        ("an access log with paths", lambda t: resource(t, "Api")["AccessLogSettings"].update(Format='{"a":"$context.requestId $context.identity.userArn $context.routeKey $context.status $context.path"}'), "no path and no query"),
        ("an access log that quotes an error twice", lambda t: access_log(t, "$context.error.message", "$context.error.messageString"), "each line of the access log is JSON"),
        ("an access log with a number that may be missing", lambda t: access_log(t, '"$context.responseLength"', "$context.responseLength"), "each line of the access log is JSON"),
        ("a deployment at once that an alarm rolls back", lambda t: resource(t, "SymbolicateFunction")["DeploymentPreference"].update(Alarms=[{"Ref": "DeriveErrorsAlarm"}]), "SymbolicateFunction is not rolled back with AllAtOnce"),
        ("a rollback by an alarm that needs the alias", lambda t: resource(t, "SymbolicateFunction")["DeploymentPreference"]["Alarms"]["Fn::If"][1].append({"Ref": "ApiErrorsAlarm"}), "Circular Dependencies"),
        ("parameters that are not in use", lambda t: resource(t, "DeriveFunction").pop("VersionDescription"), "DeriveFunction has a new version with Restart"),
        ("a version that Lambda does not publish", lambda t: resource(t, "SymbolicateFunction").update(Description="A request becomes a response"), "SymbolicateFunction changes with Restart"),
        ("a pruner that keeps a secret", lambda t: resource(t, "PruneFunction").update(Description="A schedule removes what is no longer used"), "PruneFunction changes with Restart"),
        ("old versions of uploads that are kept forever", lambda t: resource(t, "UploadsBucket")["LifecycleConfiguration"]["Rules"].pop(), "old versions of uploads expire"),
        ("an alarm that a long build raises", lambda t: resource(t, "EagerQueueAgeAlarm").update(Threshold=900), "EagerQueueAgeAlarm is not raised by a long build"),
        ("a deployment that no alarm stops", lambda t: resource(t, "DeriveFunction")["DeploymentPreference"].pop("Alarms"), "DeriveFunction is rolled back"),
        ("a bucket that ignores the key", lambda t: resource(t, "CachesBucket").pop("BucketEncryption"), "CachesBucket is encrypted"),
        ("a function that uses every key", lambda t: statements(t, "PruneFunction").append({"Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": "arn:aws:kms:eu-central-1:111122223333:key/*"}), "uses the key of the account"),
        ("a queue whose age no alarm watches", lambda t: t["Resources"].pop("UploadsQueueAgeAlarm"), "UploadsQueueAgeAlarm watches"),
        ("an alarm on the wrong queue", lambda t: resource(t, "RefreshQueueAgeAlarm").update(Dimensions=[{"Name": "QueueName", "Value": {"Fn::GetAtt": "EagerQueue.QueueName"}}]), "RefreshQueueAgeAlarm watches"),
        ("an alarm on a metric that nothing writes", lambda t: resource(t, "DoubtfulLossesAlarm").update(MetricName="Losses"), "symdepot Losses"),
        ("an alarm on the metrics of all stacks", lambda t: resource(t, "DoubtfulLossesAlarm").update(Dimensions=[]), "metrics that are written: DoubtfulLossesAlarm"),
        ("throttles of a function that are not counted", lambda t: resource(t, "ThrottlesAlarm")["Metrics"][3].update(Expression="SUM([symbolicate, derive])"), "ThrottlesAlarm compares one value"),
        ("an expression with a name that is not defined", lambda t: resource(t, "ConcurrencyAlarm")["Metrics"][1].update(Expression="100 * run / 10"), "ConcurrencyAlarm"),
        ("a missed schedule that is fine", lambda t: resource(t, "PruneMissedAlarm").update(TreatMissingData="notBreaching"), "only the alarm of the schedule"),
        ("an estimate with the price of the other processors", lambda t: resource(t, "DailyCostAlarm")["Metrics"][5]["Expression"]["Fn::If"].__setitem__(2, resource(t, "DailyCostAlarm")["Metrics"][5]["Expression"]["Fn::If"][1]), r"prices.json \(x86_64\)"),
        ("an estimate that counts milliseconds as seconds", lambda t: resource(t, "DailyCostAlarm")["Metrics"][5].update(Expression={"Fn::Sub": "(FILL(symbolicate, 0) * ${SymbolicateMemory} + FILL(derive, 0) * ${DeriveMemory}) / 1024 * 0.0000133334"}), "DailyCostAlarm estimates"),
        ("an alarm that the dashboard lacks", lambda t: body(t, lambda text: text.replace("${PruneErrorsAlarm.Arn}", "${ApiErrorsAlarm.Arn}")), "shows every alarm, with MoreAlarms=off, .*: PruneErrorsAlarm"),
        ("an alarm of MoreAlarms that the dashboard lacks", lambda t: resource(t, "DashboardOfStack")["DashboardBody"]["Fn::Sub"][1].update(MoreAlarmsShown=""), "shows every alarm, with MoreAlarms=on, .*: .*DailyCostAlarm"),
        ("an alarm that the dashboard shows although it may not exist", lambda t: t["Resources"]["PruneMissedAlarm"].update(Condition="HasMoreAlarms"), "shows every alarm, with MoreAlarms=off, .*: PruneMissedAlarm"),
        ("an alarm more than AWS permits for nothing", lambda t: t["Resources"]["RecursionAlarm"].pop("Condition"), "at most ten metrics"),
        ("a rollback by an alarm that may not exist", lambda t: t["Resources"]["DeriveRollbackAlarm"].update(Condition="HasMoreAlarms"), "rolled back by an alarm"),
        ("a line of Lambda for each invocation", lambda t: t["Globals"]["Function"]["LoggingConfig"].pop("SystemLogLevel"), "writes no lines about invocations that succeed"),
        ("lines below INFO that Lambda leaves out", lambda t: t["Globals"]["Function"]["LoggingConfig"].pop("ApplicationLogLevel"), "LOG decides"),
        ("an alarm that each large upload of a new account raises", lambda t: resource(t, "ConcurrencyAlarm").update(Threshold=80), "ConcurrencyAlarm is not raised by the builds"),
        ("runs of prune that start together after an hour without runs", lambda t: resource(t, "PruneFunction")["EventInvokeConfig"].pop("MaximumEventAgeInSeconds"), "is dropped before the next one"),
        ("runs of prune that Lambda repeats", lambda t: resource(t, "PruneFunction").pop("EventInvokeConfig"), "is not repeated before the next one"),
        ("a dashboard that is not JSON", lambda t: body(t, lambda text: text.replace('"start":', "start:")), "its body is JSON"),
        ("a dashboard with a metric of AWS that does not exist", lambda t: body(t, lambda text: text.replace('"Throttles"', '"Throttled"')), "AWS/Lambda Throttled"),
        ("a dashboard with a metric that the functions do not write", lambda t: body(t, lambda text: text.replace("Behind", "Outdated")), "symdepot Outdated"),
        ("a dashboard with a table in place of a queue", lambda t: body(t, lambda text: text.replace("${DeadLetters.QueueName}", "${RecordsTable}")), "QueueName RecordsTable"),
        ("a dashboard that queries the access log", lambda t: body(t, lambda text: text.replace("SOURCE '${Logs}'", "SOURCE '${AccessLogs}'")), "its queries read"),
        ("widgets on top of each other", lambda t: body(t, lambda text: text.replace('"x": 8, "y": 10', '"x": 4, "y": 10')), "do not overlap"),
        ("a dashboard whose name another region has", lambda t: resource(t, "DashboardOfStack").update(DashboardName={"Ref": "AWS::StackName"}), "its name has the stack"),
        ("tokens that are lost with the table", lambda t: resource(t, "RecordsTable").pop("PointInTimeRecoverySpecification"), "can be restored"),
        ("an access log without the subject of a JWT", lambda t: resource(t, "Api")["AccessLogSettings"].update(Format=resource(t, "Api")["AccessLogSettings"]["Format"].replace("$context.authorizer.claims.sub", "")), "access log names caller"),
        ("uploaders of every scope", lambda t: t["Outputs"]["UploaderPolicy"]["Value"]["Fn::If"][2].update({"Fn::Sub": t["Outputs"]["UploaderPolicy"]["Value"]["Fn::If"][2]["Fn::Sub"].replace("SCOPE/", "")}), "UploaderPolicy is the least"),
        ("uploaders who may not use the key", lambda t: t["Outputs"]["UploaderPolicy"].update(Value=t["Outputs"]["UploaderPolicy"]["Value"]["Fn::If"][2]), "UploaderPolicy is the least with a key"),
        ("callers of every API", lambda t: t["Outputs"]["CallerPolicy"]["Value"].update({"Fn::Sub": t["Outputs"]["CallerPolicy"]["Value"]["Fn::Sub"].replace("${Api}/", "")}), "CallerPolicy is the least"),
        ("uploads that expire unnoticed", lambda t: resource(t, "UploadsBucket")["NotificationConfiguration"]["QueueConfigurations"].pop(), "s3:LifecycleExpiration:\\* is sent"),
        ("a role that nothing checks", lambda t: t["Resources"].update(Forgotten=copy.deepcopy(t["Resources"]["PruneRole"])), "no roles but those"),
        ("a schedule that assumes the role of an administrator", lambda t: resource(t, "PruneFunction")["Events"]["Hourly"]["Properties"].update(RoleArn="arn:aws:iam::111122223333:role/admin"), "may call prune, and nothing else"),
        ("a schedule with the role of SAM", lambda t: event(t, "PruneFunction", "Hourly").pop("RoleArn"), "no roles but those"),
        ("a role that schedules of every account assume", lambda t: resource(t, "PruneScheduleRole")["AssumeRolePolicyDocument"]["Statement"][0].pop("Condition"), "only schedules of this account assume"),
        ("a deployment with the role of SAM", lambda t: resource(t, "DeriveFunction")["DeploymentPreference"].pop("Role"), "no roles but those"),
        ("a deployment with the role of the other function", lambda t: resource(t, "DeriveFunction")["DeploymentPreference"].update(Role={"Fn::GetAtt": "SymbolicateDeploymentRole.Arn"}), "DeriveFunction is deployed with the role of its deployments"),
        ("deployments that may move every alias", lambda t: resource(t, "DeriveDeploymentRole")["Policies"][0]["PolicyDocument"]["Statement"][0].update(Resource="*"), "DeriveDeploymentRole may do what it has to"),
        ("AWS's policy for deployments", lambda t: resource(t, "DeriveDeploymentRole").update(ManagedPolicyArns=["arn:aws:iam::aws:policy/service-role/AWSCodeDeployRoleForLambda"]), "DeriveDeploymentRole has no managed policy"),
        ("a role without the boundary", lambda t: resource(t, "PruneScheduleRole").pop("PermissionsBoundary"), "PruneScheduleRole has the permissions boundary"),
        ("a boundary that is always set", lambda t: resource(t, "DeriveRole").update(PermissionsBoundary={"Ref": "PermissionsBoundary"}), "DeriveRole has the permissions boundary"),
        ("messages that are kept as long as dead letters", lambda t: resource(t, "UploadsQueue").update(MessageRetentionPeriod=1209600), "UploadsQueue: dead letters are kept four days longer"),
        ("a queue that accepts plain HTTP", lambda t: t["Resources"].pop("RefreshQueuePolicy"), "RefreshQueue refuses requests without TLS"),
        ("events that may come over plain HTTP", lambda t: resource(t, "UploadsQueuePolicy")["PolicyDocument"]["Statement"].pop(), "UploadsQueue refuses requests without TLS"),
        ("a policy that replaces another one", lambda t: t["Resources"].update(Second=copy.deepcopy(t["Resources"]["DeadLettersPolicy"])), "DeadLetters has one policy"),
        ("a topic that accepts plain HTTP", lambda t: resource(t, "AlarmsPolicy")["PolicyDocument"]["Statement"].pop(), "Alarms refuses requests without TLS"),
        ("a topic to which alarms may not publish", lambda t: resource(t, "AlarmsPolicy")["PolicyDocument"]["Statement"].pop(0), "the alarms of this account may publish to Alarms"),
        ("a function that every bucket may invoke", lambda t: t["Resources"].update(Everyone={"Type": "AWS::Lambda::Permission", "Properties": {"Action": "lambda:InvokeFunction", "FunctionName": {"Ref": "DeriveFunction"}, "Principal": "s3.amazonaws.com", "SourceArn": "arn:aws:s3:::*"}}), "nothing else may invoke"),
        ("callers who may issue tokens", lambda t: t["Outputs"]["CallerPolicy"]["Value"].update({"Fn::Sub": t["Outputs"]["CallerPolicy"]["Value"]["Fn::Sub"].replace("tokens", "token")}), "CallerPolicy is the least"),
        ("tokens that anybody may issue", lambda t: event(t, "SymbolicateFunction", "Tokens").update(Auth={"Authorizer": "NONE"}), "/tokens has the authorizer AWS_IAM"),
        ("tokens without a route that policies can name", lambda t: resource(t, "SymbolicateFunction")["Events"].pop("Token"), "no routes but those"),
        ("no address of the dead letters", lambda t: t["Outputs"].pop("DeadLetters"), "DeadLetters is the URL"),
        ("the ARN of the dead letters as their address", lambda t: t["Outputs"]["DeadLetters"].update(Value={"Fn::GetAtt": ["DeadLetters", "Arn"]}), "DeadLetters is the URL"),
        ("a function built at the workspace's root", lambda t: resource(t, "DeriveFunction").update(CodeUri=".."), "has no binary derive"),
    ]


def removals(template):
    """Returns the template without one grant of a service that the local stack does not have, for each of them: what is
    removed, the template, and a pattern that a finding must match."""
    for name in FUNCTIONS:
        statements = lambda t: t["Resources"][name.replace("Function", "Role")]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        for at, statement in enumerate(statements(template)):
            granted = if_granted(statement)
            for action in granted["Action"]:
                if granted["Effect"] == "Deny" or action.split(":")[0] in ("dynamodb", "s3", "sqs"):
                    continue
                mutant = copy.deepcopy(template)
                changed = statements(mutant)[at]
                changed = changed.get("Fn::If", [None, changed])[1]
                changed["Action"].remove(action)
                if not changed["Action"]:
                    del statements(mutant)[at]
                yield f"{name} without {action} (statement {at})", mutant, f"{name} has what it needs.*{action}"


def count_missed(original, planted, check):
    """Plants each mistake in a copy, calls `check` with it and with what a finding has to say, and returns how many
    mistakes no finding tells."""

    def findings(number):
        _, plant, expected = planted[number]
        mutant = copy.deepcopy(original)
        plant(mutant)
        return check(mutant, expected).failures()

    missed = 0
    for (what, _, expected), found in zip(planted, side_by_side(findings, len(planted))):
        telling = [finding for finding in found if re.search(expected, finding)]
        missed += not telling
        print(f"{'found ' if telling else 'MISSED'} {what}\n         {(telling or found or ['no finding'])[0][:150]}")
    return missed


def side_by_side(function, count):
    """Yields function(0), function(1) and so on, computed by a process for each core. The processes are forks, which
    need no pickled function."""

    def become():
        side_by_side.function = function

    with multiprocessing.get_context("fork").Pool(initializer=become) as pool:
        yield from pool.imap(call_side_by_side, range(count))


def call_side_by_side(number):
    return side_by_side.function(number)


def self_test(template):
    """Seeds each mistake alone; returns 0 if each one is detected by the right finding."""
    before = check(template).failures()
    if before:
        print("the template itself fails, so the self-test is not meaningful:\n  " + "\n  ".join(before))
        return 1
    missed = count_missed(template, mistakes(), lambda mutant, _: check(mutant))
    removed = 0
    for what, mutant, expected in removals(template):
        checks = Checks()
        check_grants(checks, Stack(translate(mutant)))
        telling = [finding for finding in checks.failures() if re.search(expected, finding)]
        missed += not telling
        removed += 1
        print(f"{'found ' if telling else 'MISSED'} {what}")
    aliased = load("a: &x 1\nb: *x\n")[1]
    missed += not aliased
    print(f"{'found ' if aliased else 'MISSED'} an alias in the YAML\n         {aliased}")
    print(f"\n{len(mistakes()) + removed + 1} mistakes seeded, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
