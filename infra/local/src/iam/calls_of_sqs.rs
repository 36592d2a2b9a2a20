//! The permissions that operations of SQS need.
//!
//! Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon
//! SQS"; Amazon SQS Developer Guide, "Configuring a dead-letter queue redrive" for moves.

use serde_json::Value;

use super::access::Asked;

/// Returns what a request asks for; `arn` returns the ARN of a queue by its name.
pub(crate) fn asked(operation: &str, input: &Value, arn: impl Fn(&str) -> String) -> Vec<Asked> {
    let queue = || {
        let url = input["QueueUrl"].as_str().unwrap_or_default();
        arn(url
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default())
    };
    let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
    let one = |action: &str, resource: String| vec![Asked::new(format!("sqs:{action}"), resource)];
    match operation {
        // A batch needs the permission of its entries.
        "SendMessageBatch" => one("SendMessage", queue()),
        "DeleteMessageBatch" => one("DeleteMessage", queue()),
        "ChangeMessageVisibilityBatch" => one("ChangeMessageVisibility", queue()),
        "ListQueues" => one("ListQueues", "*".to_owned()),
        "GetQueueUrl" => one("GetQueueUrl", arn(&text("QueueName"))),
        "StartMessageMoveTask" => {
            let from = [
                "StartMessageMoveTask",
                "ReceiveMessage",
                "DeleteMessage",
                "GetQueueAttributes",
            ];
            let mut asked: Vec<Asked> = from
                .into_iter()
                .flat_map(|action| one(action, text("SourceArn")))
                .collect();
            // Without a destination, messages go back to the queues that they came from.
            if input["DestinationArn"].is_string() {
                asked.extend(one("SendMessage", text("DestinationArn")));
            }
            asked
        }
        "ListMessageMoveTasks" => one(operation, text("SourceArn")),
        "CancelMessageMoveTask" => one(operation, "*".to_owned()),
        _ => one(operation, queue()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_operation_needs_the_documented_permissions() {
        let queue = json!({"QueueUrl": "http://127.0.0.1:1/000000000000/q"});
        for (operation, input, expected) in [
            ("SendMessage", queue.clone(), vec!["SendMessage q"]),
            ("SendMessageBatch", queue.clone(), vec!["SendMessage q"]),
            ("ReceiveMessage", queue.clone(), vec!["ReceiveMessage q"]),
            (
                "ChangeMessageVisibility",
                queue,
                vec!["ChangeMessageVisibility q"],
            ),
            (
                "GetQueueUrl",
                json!({"QueueName": "q"}),
                vec!["GetQueueUrl q"],
            ),
            ("ListQueues", json!({}), vec!["ListQueues *"]),
            (
                "StartMessageMoveTask",
                json!({"SourceArn": "dead", "DestinationArn": "q"}),
                vec![
                    "StartMessageMoveTask dead",
                    "ReceiveMessage dead",
                    "DeleteMessage dead",
                    "GetQueueAttributes dead",
                    "SendMessage q",
                ],
            ),
        ] {
            let asked: Vec<String> = asked(operation, &input, str::to_owned)
                .into_iter()
                .map(|one| format!("{} {}", one.action.trim_start_matches("sqs:"), one.resource))
                .collect();
            assert_eq!(asked, expected, "{operation}");
        }
    }
}
