//! Templates: invalid ones are refused with the place and the reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::time::Duration;

use local_stack::template::{
    DEFAULTS, Deployment, LifecycleRule, Template, TemplateError, USUAL_CONCURRENCY,
};

const TEMPLATE: &str = include_str!("project/template.yaml");

const DEPLOYMENT: Deployment<'_> = Deployment {
    stack_name: "shop",
    sqs_endpoint: "http://127.0.0.1:3024",
    parameters: &DEFAULTS,
    account_concurrency: USUAL_CONCURRENCY,
};

/// Returns the error for [`TEMPLATE`] with `old` replaced by `new`.
fn error(old: &str, new: &str) -> TemplateError {
    assert!(TEMPLATE.contains(old), "the template has no {old:?}");
    Template::read(&TEMPLATE.replacen(old, new, 1), &DEPLOYMENT).unwrap_err()
}

/// Returns the line number of `text` in [`TEMPLATE`].
fn line(text: &str) -> usize {
    1 + TEMPLATE
        .lines()
        .position(|line| line.contains(text))
        .unwrap()
}

#[test]
fn the_long_form_of_an_intrinsic_means_the_same() {
    let mut long = TEMPLATE
        .replace("!Ref Orders", "{Ref: Orders}")
        .replace("!GetAtt Orders.Arn", "{\"Fn::GetAtt\": [Orders, Arn]}");
    for name in ["Dead", "Records", "ProbeRole"] {
        long = long.replace(
            &format!("!GetAtt {name}.Arn"),
            &format!("{{\"Fn::GetAtt\": {name}.Arn}}"),
        );
    }
    const SUB: &str = "!Sub \"";
    while let Some(at) = long.find(SUB) {
        let end = long[at + SUB.len()..].find('"').unwrap();
        long.insert(at + SUB.len() + end + 1, '}');
        long.replace_range(at..at + SUB.len(), "{\"Fn::Sub\": \"");
    }
    assert!(!long.contains("!GetAtt") && !long.contains("!Sub"));
    let (short, long) = (
        Template::read(TEMPLATE, &DEPLOYMENT).unwrap(),
        Template::read(&long, &DEPLOYMENT).unwrap(),
    );
    assert_eq!(format!("{short:?}"), format!("{long:?}"));
}

#[test]
fn the_enabled_rules_of_a_lifecycle_are_read_and_others_refused() {
    const BUCKET: &str = "      NotificationConfiguration:\n";
    let with_rules = |rules: &str| {
        let rules = format!("      LifecycleConfiguration:\n        Rules:\n{rules}");
        TEMPLATE.replacen(BUCKET, &format!("{rules}{BUCKET}"), 1)
    };
    let text = with_rules(
        "          - { Id: a, Status: Enabled, Prefix: tmp/, ExpirationInDays: 3 }
          - { Id: b, Status: Disabled, ExpirationInDays: 1 }
          - { Id: c, Status: Enabled, AbortIncompleteMultipartUpload: { DaysAfterInitiation: 2 } }
          - { Id: d, Status: Enabled, NoncurrentVersionExpiration: { NoncurrentDays: 30 } }
          - { Id: e, Status: Enabled, ObjectSizeGreaterThan: \"1\", Transitions: [{ StorageClass: INTELLIGENT_TIERING, TransitionInDays: 0 }] }
",
    );
    let template = Template::read(&text, &DEPLOYMENT).unwrap();
    let rules = template.buckets[0].lifecycle.iter();
    let rules: Vec<_> = rules
        .map(|rule| {
            let LifecycleRule {
                prefix,
                objects_after_days,
                uploads_after_days,
            } = rule;
            (prefix.as_str(), *objects_after_days, *uploads_after_days)
        })
        .collect();
    let expected = [
        ("tmp/", Some(3), None),
        ("", None, Some(2)),
        ("", None, None),
        ("", None, None),
    ];
    assert_eq!(rules, expected);
    for (rule, says) in [
        (
            "Transitions: [{ StorageClass: GLACIER, TransitionInDays: 9 }]",
            "StorageClass \"GLACIER\" is not supported",
        ),
        (
            "ExpirationInDays: 3, ObjectSizeGreaterThan: \"1\"",
            "ObjectSizeGreaterThan is not supported",
        ),
        (
            "ExpirationInDays: 3, ObjectSizeGreaterThan: \"1\", Transitions: [{ StorageClass: INTELLIGENT_TIERING, TransitionInDays: 0 }]",
            "ObjectSizeGreaterThan is not supported",
        ),
    ] {
        let refused = with_rules(&format!("          - {{ Status: Enabled, {rule} }}\n"));
        let error = Template::read(&refused, &DEPLOYMENT).unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
}

#[test]
fn the_globals_are_the_defaults_of_every_function() {
    let own = TEMPLATE.replacen(
        "      Timeout: 30\n",
        "      Timeout: 30\n      Environment:\n        Variables:\n          NUMBER: 8\n",
        1,
    );
    let template = Template::read(&own, &DEPLOYMENT).unwrap();
    let (probe, sweeper) = (&template.functions[0], &template.functions[1]);
    assert_eq!(
        (
            probe.environment["NUMBER"].as_str(),
            probe.environment["TABLE"].as_str()
        ),
        ("8", "Records")
    );
    assert_eq!(sweeper.environment["NUMBER"], "7");
    assert_eq!(
        (sweeper.memory_mb, sweeper.timeout),
        (128, Duration::from_secs(3))
    );
}

#[test]
fn an_unknown_type_is_named_with_its_line() {
    let error = error("AWS::SQS::Queue", "AWS::SNS::Subscription");
    assert_eq!(
        (error.place.as_str(), error.line),
        ("Orders", line("Type: AWS::SQS::Queue"))
    );
    assert!(
        error
            .message
            .contains("AWS::SNS::Subscription is not supported"),
        "{error}"
    );
}

#[test]
fn an_unknown_property_is_named_with_its_line() {
    let error = error("VisibilityTimeout: 60", "VisibilityDelay: 60");
    assert_eq!(
        (error.place.as_str(), error.line),
        ("Orders", line("VisibilityTimeout: 60"))
    );
    assert!(
        error.message.contains("VisibilityDelay is not supported"),
        "{error}"
    );
}

#[test]
fn an_unknown_intrinsic_is_named() {
    let error = error(
        "!Sub \"${AWS::StackName}-uploads-${AWS::AccountId}\"",
        "!Join [\"-\", [a, b]]",
    );
    assert_eq!(error.place, "Uploads.BucketName");
    assert!(
        error.message.contains("Fn::Join is not supported"),
        "{error}"
    );
}

#[test]
fn a_dangling_reference_is_reported_with_its_property() {
    let error = error("!Ref Records", "!Ref NoSuchTable");
    assert_eq!(error.place, "Globals.Function.Environment.Variables.TABLE");
    assert_eq!(error.line, line("TABLE: !Ref Records"));
    assert!(
        error.message.contains("NoSuchTable is not a resource"),
        "{error}"
    );
}

#[test]
fn an_unknown_attribute_is_named() {
    let error = error("!GetAtt Orders.Arn", "!GetAtt Orders.QueueUrl");
    assert!(
        error.message.contains(
            "attribute QueueUrl of Orders is not supported by the local stack, only Arn, QueueName"
        ),
        "{error}"
    );
}

/// SAM has references to the version that it publishes, and functions may be in a network.
#[test]
fn what_only_a_version_and_a_network_have_in_aws_is_read_and_has_no_effect() {
    let timeout = "      Timeout: 30\n";
    let network = "      VpcConfig: { SubnetIds: [subnet-1], SecurityGroupIds: [sg-1] }\n";
    let text = TEMPLATE.replacen(timeout, &format!("{timeout}{network}"), 1);
    let text = text.replacen(
        "!GetAtt Records.Arn",
        "[!GetAtt Records.Arn, !Sub \"${Records.Arn}/index/${Probe.Version.Version}\"]",
        1,
    );
    let template = Template::read(&text, &DEPLOYMENT).unwrap();
    let grants = template.policies.grants();
    let granted = |end: &str| grants.iter().any(|grant| grant.resource.ends_with(end));
    assert!(granted("table/Records/index/1"), "{grants:?}");
}

#[test]
fn an_unknown_pseudo_parameter_is_named() {
    let error = error("${AWS::StackName}", "${AWS::StackId}");
    assert!(
        error.message.contains("AWS::StackId is not supported"),
        "{error}"
    );
}

#[test]
fn schedules_other_than_rates_are_refused() {
    let error = error("rate(1 hour)", "cron(0 12 * * ? *)");
    assert!(error.message.contains("rate(…) only"), "{error}");
    assert_eq!(error.place, "Sweeper.Events.Hourly.Properties");
}

#[test]
fn a_rate_that_aws_refuses_is_refused() {
    assert!(
        error("rate(1 hour)", "rate(1 hours)")
            .message
            .contains("not of a form like rate(1 hour)")
    );
}

#[test]
fn a_queue_that_hides_messages_for_less_than_the_functions_timeout_is_refused() {
    let error = error("VisibilityTimeout: 60", "VisibilityTimeout: 29");
    assert!(
        error
            .message
            .contains("(29 s) is shorter than the function's timeout (30 s)"),
        "{error}"
    );
}

#[test]
fn a_number_out_of_its_range_is_named_with_the_range() {
    let error = error("Timeout: 30\n", "Timeout: 1000\n");
    assert!(
        error
            .message
            .contains("Timeout is 1000, but must be from 1 to 900"),
        "{error}"
    );
}

#[test]
fn a_recursive_loop_setting_other_than_allow_or_terminate_is_refused() {
    let timeout = "      Timeout: 30\n";
    let forbidden = format!("{timeout}      RecursiveLoop: Forbid\n");
    let error = error(timeout, &forbidden);
    let expected =
        "RecursiveLoop \"Forbid\" is not supported by the local stack, only Allow, Terminate";
    assert!(error.message.contains(expected), "{error}");
}

#[test]
fn an_unknown_event_is_named() {
    let error = error("Type: ScheduleV2", "Type: Schedule");
    assert!(
        error
            .message
            .contains("event type Schedule is not supported"),
        "{error}"
    );
}

#[test]
fn a_route_other_than_the_default_is_refused() {
    let error = error("Path: $default", "Path: /orders");
    assert!(
        error.message.contains("Path \"/orders\" is not supported"),
        "{error}"
    );
}

#[test]
fn an_unknown_section_is_named() {
    let error = error("Globals:", "Mappings: {}\nGlobals:");
    assert!(
        error.message.contains("Mappings is not supported"),
        "{error}"
    );
}

#[test]
fn a_dead_letter_queue_must_be_a_queue() {
    let error = error("!GetAtt Dead.Arn", "!GetAtt Uploads.Arn");
    assert_eq!(error.place, "Orders.RedrivePolicy");
    assert!(error.message.contains("is not a queue's Arn"), "{error}");
}

#[test]
fn two_functions_of_one_binary_are_refused() {
    assert!(
        error("Binary: sweeper", "Binary: probe-function")
            .message
            .contains("also the binary of Probe")
    );
}

#[test]
fn a_function_without_a_binary_is_refused() {
    let error = error("Binary: sweeper", "Other: sweeper");
    assert_eq!(error.place, "Sweeper.Metadata.BuildProperties");
    assert!(error.message.contains("Binary is missing"), "{error}");
}

#[test]
fn a_duplicate_key_is_refused() {
    let error = error(
        "      Timeout: 30\n",
        "      Timeout: 30\n      Timeout: 31\n",
    );
    assert!(error.message.contains("duplicated key"), "{error}");
}

#[test]
fn a_dangling_dependency_is_refused() {
    let error = error(
        "    Type: AWS::Serverless::HttpApi",
        "    Type: AWS::Serverless::HttpApi\n    DependsOn: Nothing",
    );
    assert!(error.message.contains("DependsOn Nothing"), "{error}");
}

#[test]
fn malformed_yaml_is_refused_with_its_line() {
    let error = Template::read("Resources:\n  a: [\n", &DEPLOYMENT).unwrap_err();
    assert!(error.message.starts_with("not YAML"), "{error}");
    assert!(error.line >= 2, "{error}");
}

#[test]
fn a_share_of_the_machine_is_a_variable_with_a_number_of_bytes_of_one_function() {
    let shared = |variable: &str| {
        let share = format!("MachineShares:\n        {variable}: {{ Of: disk, Percent: 5 }}\n");
        format!("        Binary: sweeper\n      {share}")
    };
    let sweeper = "        Binary: sweeper\n";
    let no_number = error(sweeper, &shared("TABLE"));
    assert_eq!(no_number.place, "Sweeper.Metadata.MachineShares.TABLE");
    assert!(no_number.message.contains("number of bytes"), "{no_number}");
    let unknown = error(sweeper, &shared("ELSEWHERE"));
    assert!(
        unknown.message.contains("no variable ELSEWHERE"),
        "{unknown}"
    );
    let twice = TEMPLATE
        .replacen(sweeper, &shared("NUMBER"), 1)
        .replacen(
            "        Binary: probe-function\n",
            "        Binary: probe-function\n      MachineShares:\n        NUMBER: { Of: disk, Percent: 5 }\n",
            1,
        );
    let error = Template::read(&twice, &DEPLOYMENT).unwrap_err();
    assert!(
        error.message.contains("share of another function"),
        "{error}"
    );
}
