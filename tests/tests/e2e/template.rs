//! The local stack's view of `infra/template.yaml`.

use std::time::Duration;

use local_stack::template::{
    DEFAULTS, Deployment, QueueSource, Resource, Template, USUAL_CONCURRENCY,
};
use symdepot::cache::ItemKey;
use symdepot_tests::stack::{STACK_NAME, checkout};

fn template() -> Template {
    template_in(USUAL_CONCURRENCY)
}

/// Returns the template as it is in an account that runs so many functions at a time.
fn template_in(account_concurrency: usize) -> Template {
    let deployment = Deployment {
        stack_name: STACK_NAME,
        sqs_endpoint: "http://127.0.0.1:3024",
        parameters: &DEFAULTS,
        account_concurrency,
    };
    Template::load(&symdepot_tests::stack::template(), &deployment).unwrap()
}

#[test]
fn the_template_is_parsed_as_intended() {
    let template = template();
    let names: Vec<&str> = template
        .functions
        .iter()
        .map(|function| function.name.as_str())
        .collect();
    assert_eq!(names, ["symbolicate", "derive", "prune"]);
    assert_eq!(template.http_api.as_deref(), Some("symbolicate"));

    let derive = template.function("DeriveFunction").unwrap();
    assert_eq!(
        (derive.memory_mb, derive.ephemeral_mb, derive.timeout),
        (3008, 10_240, Duration::from_secs(900))
    );
    assert_eq!(
        (derive.log_format.as_str(), derive.log_group.as_str()),
        ("JSON", "symdepot-Logs")
    );
    assert_eq!(
        derive.environment["EAGER_QUEUE_URL"],
        "http://127.0.0.1:3024/000000000000/EagerQueue"
    );
    assert_eq!(derive.environment["CACHE_TABLE"], "RecordsTable");
    // The default template refers to no secret, and prune would not receive one.
    assert_eq!(derive.environment["SOURCES"], "[]");
    let prune = template.function("prune").unwrap();
    assert!(!prune.environment.contains_key("SOURCES"));
    assert_eq!(
        derive.environment["UPLOADS_BUCKET"],
        "symdepot-uploads-000000000000-us-east-1"
    );
    let eager = QueueSource {
        queue: "EagerQueue".to_owned(),
        batch_size: 1,
        maximum_concurrency: Some(20),
        reports_failures: true,
    };
    assert_eq!(derive.queues[0], eager);
    assert_eq!(derive.queues.len(), 3);
    // A new account has nothing to reserve.
    assert!(
        template
            .functions
            .iter()
            .all(|one| one.reserved_concurrency.is_none())
    );
    assert_eq!(template.schedules[0].function, "prune");
    assert_eq!(template.schedules[0].every, Duration::from_secs(3600));

    let uploads = &template.buckets[0];
    let events: Vec<(&str, &str)> = uploads
        .notifications
        .iter()
        .map(|one| (one.event.as_str(), one.queue.as_str()))
        .collect();
    assert_eq!(
        events,
        [
            ("s3:ObjectCreated:*", "UploadsQueue"),
            ("s3:ObjectRemoved:*", "UploadsQueue"),
            ("s3:LifecycleExpiration:*", "UploadsQueue"),
        ]
    );

    let uploads_queue = template
        .queues
        .iter()
        .find(|queue| queue.name == "UploadsQueue")
        .unwrap();
    assert_eq!(uploads_queue.visibility_timeout, Duration::from_secs(960));
    assert_eq!(uploads_queue.redrive, Some(("DeadLetters".to_owned(), 6)));

    let table = &template.tables[0];
    assert_eq!(table.name, "RecordsTable");
    assert_eq!(table.properties["KeySchema"][1]["AttributeName"], "sort");
    assert_eq!(table.properties["TimeToLiveSpecification"]["Enabled"], true);
}

/// What names the partition of the access tokens outside of the code: the roles that may not write
/// to it, their check, and the backup.
#[test]
fn the_partition_of_access_tokens_is_the_same_everywhere() {
    let partition = ItemKey::issued_tokens();
    for (path, count) in [
        ("infra/template.yaml", 2),
        ("infra/check/template.py", 1),
        ("infra/backup", 1),
    ] {
        let text = std::fs::read_to_string(checkout().join(path)).unwrap();
        let found = text.matches(&format!("\"{partition}\"")).count();
        assert_eq!(found, count, "{path}: {partition}");
    }
}

/// The three functions see the same limits; each variable is the share of one of them
/// (docs/security.md, F16).
#[test]
fn budgets_are_shares_of_the_machine_and_total_at_most_eighty_percent() {
    let template = template();
    let shares = || template.functions.iter().flat_map(|one| &one.shares);
    let mut variables: Vec<&str> = shares().map(|share| share.variable.as_str()).collect();
    variables.sort_unstable();
    assert_eq!(
        variables,
        [
            "DERIVED_BUDGET_BYTES",
            "DIF_BUDGET_BYTES",
            "MEMORY_CACHE_BYTES",
            "PARSER_MEMORY_BYTES",
            "SCRATCH_BYTES",
        ]
    );
    for resource in [Resource::Memory, Resource::Disk] {
        let of_it = shares().filter(|share| share.of == resource);
        let percent: u64 = of_it.map(|share| share.percent).sum();
        assert!(percent <= 80, "{resource:?}: {percent} %");
    }
}

/// What the queues of a new account may run at a time is less than its ten runs: requests have the
/// others, and no message is refused by Lambda until it is a dead letter.
#[test]
fn queues_leave_runs_of_a_new_account_to_requests() {
    let of_queues = |template: Template| -> usize {
        let derive = template.function("derive").unwrap();
        let limits = derive.queues.iter().map(|queue| queue.maximum_concurrency);
        limits.map(|limit| limit.unwrap()).sum()
    };
    assert_eq!(of_queues(template_in(10)), 7);
    assert_eq!(of_queues(template_in(USUAL_CONCURRENCY)), 35);
    let permits = |template: Template| {
        let derive = template.function("derive").unwrap();
        derive.environment["SOURCE_MAX_PERMITS"].clone()
    };
    assert_eq!(permits(template_in(10)), "2");
    assert_eq!(permits(template_in(USUAL_CONCURRENCY)), "8");
}
