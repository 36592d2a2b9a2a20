#!/usr/bin/env python3
"""Makes plain CloudFormation of infra/template.yaml, which Terraform and CDK can include, and checks it without a build.

    infra/check/plain.py    checks it for both kinds of processors, then seeds mistakes and shows that each is detected

`make package` writes what `plain_template` returns. Its functions are in the bucket of the parameter CodeBucket.
"""

import argparse
import copy
import json
import re
import sys
from pathlib import Path

import template

ARCHITECTURES = ["arm64", "x86_64"]
# The parameters that say where the zips are: the template of SAM does not have them.
CODE = {"CodeBucket", "CodePrefix"}
# How a new version takes over: as the parameter Deployment says.
DEPLOYMENT = {"Fn::Sub": "CodeDeployDefault.Lambda${Deployment}"}
# A template is passed as text up to this size, and otherwise by way of S3. Source: quotas of CloudFormation.
MAX_BYTES = 1_000_000
# Sections that CloudFormation has, of which `Transform` is left out. Source: its user guide, "template sections".
SECTIONS = {"AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Rules", "Mappings", "Conditions", "Resources", "Outputs"}
PSEUDO = {"AccountId", "NoValue", "NotificationARNs", "Partition", "Region", "StackId", "StackName", "URLSuffix"}
# What of cfn-lint is ignored besides what template.py ignores, by the kind of processors.
LINT_IGNORED = {
    "arm64": {("W1028", "DailyCostAlarm"): "the programs are for one kind of processors, so the price of the others is unused"},
    # cfn-lint does not notice it there.
    "x86_64": {},
}


def plain_template(source, architecture, zips):
    """Returns the template as plain CloudFormation. `zips` has the names of the files, by the names of the functions."""
    source = copy.deepcopy(source)
    source["Parameters"]["Architecture"].update(Default=architecture, AllowedValues=[architecture])
    # The id of a version contains a hash of this address: it changes with the program.
    plain = template.translate(source, {name: f"s3://packages/{zipped}" for name, zipped in zips.items()})
    plain["Parameters"] |= {
        "CodeBucket": {"Type": "String", "AllowedPattern": "[a-z0-9][a-z0-9.-]+", "Description": "The bucket in this region that the zips were copied to"},
        "CodePrefix": {"Type": "String", "Default": "", "Description": "What is before the names of the zips in that bucket, for example symdepot-0.1.0-arm64/"},
    }
    # SAM replaces the parameter by its default when it translates.
    for group in groups(plain):
        group["DeploymentConfigName"] = DEPLOYMENT
    for name, zipped in zips.items():
        plain["Resources"][name]["Properties"]["Code"] = {
            "S3Bucket": {"Ref": "CodeBucket"},
            "S3Key": {"Fn::Sub": f"${{CodePrefix}}{zipped}"},
        }
    return plain


def groups(plain):
    """Returns the properties of the deployment groups."""
    return [resource["Properties"] for resource in plain["Resources"].values() if resource["Type"] == "AWS::CodeDeploy::DeploymentGroup"]


def check(checks, plain, source, architecture, zips):
    """Checks what `plain_template` returned for the same source, architecture and zips."""
    topic = f"plain, {architecture}"
    text = json.dumps(plain, indent=1)
    checks.that(topic, f"it has at most {MAX_BYTES:,} bytes", len(text) <= MAX_BYTES, f"{len(text):,}")
    checks.all(topic, "no section that only SAM knows", sorted(plain.keys() - SECTIONS))
    checks.all(topic, "no resource of SAM", sorted(name for name, resource in plain["Resources"].items() if resource["Type"].startswith("AWS::Serverless::")))
    checks.all(topic, "every reference resolves", unresolved(plain))

    expected = copy.deepcopy(source["Parameters"])
    expected["Architecture"].update(Default=architecture, AllowedValues=[architecture])
    changed = [name for name in expected.keys() | plain["Parameters"].keys() if name not in CODE and expected.get(name) != plain["Parameters"].get(name)]
    checks.all(topic, "the parameters of infra/template.yaml, for one kind of processors", sorted(changed))
    for section in ("Conditions", "Outputs"):
        checks.that(topic, f"the {section.lower()} of infra/template.yaml", plain[section] == source[section])
    # SAM names the stage of an API, and the versions of functions.
    kept = json.dumps(source["Resources"]).replace('"Ref": "Api.Stage"', '"Ref": "ApiApiGatewayDefaultStage"')
    for name, resource in plain["Resources"].items():
        if resource["Type"] == "AWS::Lambda::Version":
            kept = kept.replace(f'["{template.target(resource["Properties"]["FunctionName"])}", "Version.Version"]', f'["{name}", "Version"]')
    kept = json.loads(kept)
    kept = {name: resource for name, resource in kept.items() if not resource["Type"].startswith("AWS::Serverless::")}
    checks.all(topic, "what is no resource of SAM is unchanged", sorted(name for name, resource in kept.items() if plain["Resources"].get(name) != resource))

    found = {name: resource["Properties"].get("Code") for name, resource in plain["Resources"].items() if resource["Type"] == "AWS::Lambda::Function"}
    located = {name: {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Fn::Sub": "${CodePrefix}" + zipped}} for name, zipped in zips.items()}
    checks.that(topic, "the programs are where CodeBucket and CodePrefix say", found == located and CODE <= plain["Parameters"].keys(), json.dumps(found)[:160])
    configurations = [group.get("DeploymentConfigName") for group in groups(plain)]
    checks.that(topic, "new versions take over as Deployment says", configurations == [DEPLOYMENT, DEPLOYMENT], configurations)
    # Those of a translation without a build.
    checks.that(topic, "no address of a bucket is left", "s3://" not in json.dumps({**plain, "Parameters": {}}).replace('"s3://${SourcesObject}"', ""))


    # SAM writes the partition of the region in which it translates, which would fail in the others (aws-cn, aws-us-gov).
    checks.all(topic, "no ARN of one partition", sorted(set(re.findall(r"arn:aws[a-z-]*:[^\"]*", json.dumps({**plain, "Parameters": {}})))))


def check_lint(checks, plain, architecture):
    problems = template.lint(plain, ignored=template.LINT_IGNORED | LINT_IGNORED[architecture])
    checks.all(f"plain, {architecture}", "cfn-lint accepts it", problems)


def check_versions(checks, source, zips):
    """Checks that a function gets a new version if its program changed, and only then."""
    versions = lambda given: {name for name in plain_template(source, ARCHITECTURES[0], given)["Resources"] if "Version" in name}
    before, again = versions(zips), versions(zips)
    checks.that("versions", "the same programs make no new version", before == again and before, ", ".join(sorted(before)))
    for name, zipped in zips.items():
        after = versions({**zips, name: f"other-{zipped}"})
        replaced = {version.split("Version")[0] for version in before - after}
        # `prune` has no versions: nothing calls it but the schedule.
        expected = {name} if any(version.startswith(name) for version in before) else set()
        checks.that("versions", f"another program of {name} makes one of it alone", replaced == expected and len(after) == len(before), ", ".join(sorted(after)))


def unresolved(plain):
    """Returns the references of a template to what it does not have, each with its place."""
    resources, conditions = plain["Resources"].keys(), plain.get("Conditions", {}).keys()
    values = resources | plain["Parameters"].keys() | {f"AWS::{name}" for name in PSEUDO}
    problems = []

    def walk(value, place):
        if isinstance(value, list):
            for at, one in enumerate(value):
                walk(one, f"{place}/{at}")
        if not isinstance(value, dict):
            return
        for key, inner in value.items():
            if key == "Ref" and inner not in values:
                problems.append(f"{place}: Ref of {inner}")
            elif key == "Fn::GetAtt":
                name = inner.split(".")[0] if isinstance(inner, str) else inner[0]
                if name not in resources:
                    problems.append(f"{place}: Fn::GetAtt of {name}")
            elif key == "Fn::Sub":
                text, given = (inner, {}) if isinstance(inner, str) else inner
                for name in re.findall(r"\$\{([^!}][^}]*)\}", text):
                    if name not in values | given.keys() and name.split(".")[0] not in resources:
                        problems.append(f"{place}: Fn::Sub of {name}")
            elif key == "Fn::If" and inner[0] not in conditions:
                problems.append(f"{place}: Fn::If of {inner[0]}")
            # The conditions of policies are objects.
            elif key == "Condition" and isinstance(inner, str) and inner not in conditions:
                problems.append(f"{place}: Condition {inner}")
            elif key == "DependsOn" and not set(template.as_list(inner)) <= resources:
                problems.append(f"{place}: DependsOn {inner}")
            walk(inner, f"{place}/{key}")

    for section in ("Conditions", "Resources", "Outputs"):
        walk(plain.get(section, {}), section)
    return problems


def mistakes():
    """Returns mistakes in a plain template: what is wrong, how it is planted, and what a finding must match."""
    resource = lambda plain, name: plain["Resources"][name]
    return [
        ("a transformation", lambda p: p.update(Transform="AWS::Serverless-2016-10-31"), "only SAM knows: Transform"),
        ("globals of SAM", lambda p: p.update(Globals={"Function": {"Timeout": 3}}), "only SAM knows: Globals"),
        ("a function of SAM", lambda p: resource(p, "PruneFunction").update(Type="AWS::Serverless::Function"), "no resource of SAM: PruneFunction"),
        ("a reference to a resource that is gone", lambda p: p["Resources"].pop("DeadLetters"), "every reference resolves: .*DeadLetters"),
        ("a reference to a parameter that is gone", lambda p: p["Parameters"].pop("LogDays"), "every reference resolves: .*Ref of LogDays"),
        ("an attribute of nothing", lambda p: p["Outputs"]["Uploads"].update(Value={"Fn::GetAtt": ["Uploads", "Arn"]}), "every reference resolves: .*GetAtt of Uploads"),
        ("an alarm on a version that does not exist", lambda p: resource(p, "DeriveRollbackAlarm")["Properties"]["Dimensions"][2].update(Value={"Fn::GetAtt": ["DeriveFunctionVersion0", "Version"]}), "every reference resolves: .*DeriveFunctionVersion0"),
        ("an alarm on the version of another function", lambda p: resource(p, "DeriveRollbackAlarm")["Properties"].update(Dimensions=resource(p, "SymbolicateRollbackAlarm")["Properties"]["Dimensions"]), "is unchanged: DeriveRollbackAlarm"),
        ("a text with nothing in it", lambda p: p["Outputs"]["Endpoint"].update(Value={"Fn::Sub": "https://${ServerlessHttpApi}"}), "every reference resolves: .*ServerlessHttpApi"),
        ("a condition that is gone", lambda p: p["Conditions"].pop("HasDomain"), "every reference resolves: .*HasDomain"),
        ("a dependency that is gone", lambda p: resource(p, "UploadsBucket").update(DependsOn="UploadsPolicy"), "every reference resolves: .*DependsOn UploadsPolicy"),
        ("another default", lambda p: p["Parameters"]["DeriveMemory"].update(Default=1024), "for one kind of processors: DeriveMemory"),
        ("one parameter more", lambda p: p["Parameters"].update(Stage={"Type": "String"}), "for one kind of processors: Stage"),
        ("programs of one kind for both kinds", lambda p: p["Parameters"]["Architecture"].update(AllowedValues=ARCHITECTURES), "for one kind of processors: Architecture"),
        ("an output less", lambda p: p["Outputs"].pop("DeadLetters"), "the outputs of infra/template.yaml"),
        ("another condition", lambda p: p["Conditions"].update(HasKmsKey={"Fn::Equals": ["a", "b"]}), "the conditions of infra/template.yaml"),
        ("another retention of uploads", lambda p: resource(p, "UploadsBucket").update(DeletionPolicy="Delete"), "is unchanged: UploadsBucket"),
        ("a bucket of ours", lambda p: resource(p, "DeriveFunction")["Properties"]["Code"].update(S3Bucket="packages"), "where CodeBucket and CodePrefix say"),
        ("a zip without its prefix", lambda p: resource(p, "DeriveFunction")["Properties"]["Code"].update(S3Key="derive.zip"), "where CodeBucket and CodePrefix say"),
        ("the zip of another function", lambda p: resource(p, "DeriveFunction")["Properties"].update(Code=resource(p, "PruneFunction")["Properties"]["Code"]), "where CodeBucket and CodePrefix say"),
        ("a parameter that was replaced", lambda p: resource(p, "DeriveFunctionDeploymentGroup")["Properties"].update(DeploymentConfigName="CodeDeployDefault.LambdaAllAtOnce"), "take over as Deployment says"),
        ("an address that nothing replaced", lambda p: resource(p, "PruneFunction").update(Metadata={"Package": "s3://packages/prune.zip"}), "no address of a bucket"),
        (
            "a managed policy of one partition",
            lambda p: resource(p, "DeriveDeploymentRole")["Properties"].update(ManagedPolicyArns=["arn:aws:iam::aws:policy/service-role/AWSCodeDeployRoleForLambda"]),
            "no ARN of one partition: arn:aws:iam::aws:policy",
        ),
        ("more than CloudFormation accepts", lambda p: p.update(Metadata={"Text": "." * MAX_BYTES}), "at most 1,000,000 bytes"),
        ("a property that does not exist", lambda p: resource(p, "PruneFunction")["Properties"].update(Memory=512), "cfn-lint accepts it: .*Memory"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--venv", type=Path, default=template.CHECKOUT / ".venv")
    arguments = parser.parse_args()
    template.enter(arguments.venv.absolute(), Path(__file__).resolve())

    source, _ = template.load(template.TEMPLATE.read_text())
    zips = {name: f"{name.removesuffix('Function').lower()}-0123456789abcdef.zip" for name in template.FUNCTIONS}
    checks = template.Checks()
    for architecture in ARCHITECTURES:
        plain = plain_template(source, architecture, zips)
        check(checks, plain, source, architecture, zips)
        check_lint(checks, plain, architecture)
    check_versions(checks, source, zips)
    checks.report("plain CloudFormation")
    if checks.exit_code() != 0:
        return 1

    def checked(mutant, expected):
        found = template.Checks()
        if expected.startswith("cfn-lint"):
            check_lint(found, mutant, ARCHITECTURES[0])
        else:
            check(found, mutant, source, ARCHITECTURES[0], zips)
        return found

    plain = plain_template(source, ARCHITECTURES[0], zips)
    missed = template.count_missed(plain, mistakes(), checked)
    print(f"\n{len(mistakes())} mistakes seeded, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
