//! The permissions that operations of DynamoDB need.
//!
//! Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon
//! DynamoDB"; DynamoDB Developer Guide, "Amazon DynamoDB Transactions" for the actions of their
//! items.

use serde_json::Value;

use super::access::{Asked, table_arn};

/// Returns what a request asks for.
pub(crate) fn asked(operation: &str, input: &Value) -> Vec<Asked> {
    let action = format!("dynamodb:{operation}");
    let on = |action: &str, table: &str| Asked::new(action, table_arn(table));
    match operation {
        "BatchGetItem" | "BatchWriteItem" => {
            let tables = input["RequestItems"].as_object().into_iter().flatten();
            tables.map(|(table, _)| on(&action, table)).collect()
        }
        "TransactGetItems" | "TransactWriteItems" => {
            let items = input["TransactItems"].as_array().into_iter().flatten();
            let parts = items.filter_map(Value::as_object).flatten();
            let parts = parts.map(|(kind, item)| {
                let action = match kind.as_str() {
                    "Get" => "dynamodb:GetItem",
                    "Put" => "dynamodb:PutItem",
                    "Update" => "dynamodb:UpdateItem",
                    "Delete" => "dynamodb:DeleteItem",
                    _ => "dynamodb:ConditionCheckItem",
                };
                on(action, table_of(item))
            });
            parts.collect()
        }
        // The tables of statements are not parsed: only a role that may do so in all tables may.
        "ExecuteStatement" | "BatchExecuteStatement" | "ExecuteTransaction" => {
            ["Select", "Insert", "Update", "Delete"]
                .map(|kind| Asked::new(format!("dynamodb:PartiQL{kind}"), table_arn("*")))
                .to_vec()
        }
        "Query" | "Scan" => {
            let table = on(&action, table_of(input));
            let index = input["IndexName"].as_str();
            vec![match index {
                Some(index) => Asked::new(action, format!("{}/index/{index}", table.resource)),
                None => table,
            }]
        }
        _ if input["TableName"].is_string() => vec![on(&action, table_of(input))],
        _ => vec![Asked::new(action, "*")],
    }
}

fn table_of(input: &Value) -> &str {
    input["TableName"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_operation_needs_the_documented_permissions() {
        let table = |name: &str| format!("arn:aws:dynamodb:us-east-1:000000000000:table/{name}");
        let keys = json!({"Keys": []});
        for (operation, input, expected) in [
            (
                "GetItem",
                json!({"TableName": "a"}),
                vec![("GetItem", table("a"))],
            ),
            (
                "PutItem",
                json!({"TableName": table("a")}),
                vec![("PutItem", table("a"))],
            ),
            (
                "Scan",
                json!({"TableName": "a"}),
                vec![("Scan", table("a"))],
            ),
            (
                "Query",
                json!({"TableName": "a", "IndexName": "i"}),
                vec![("Query", table("a/index/i"))],
            ),
            (
                "BatchGetItem",
                json!({"RequestItems": {"a": keys, "b": keys}}),
                vec![("BatchGetItem", table("a")), ("BatchGetItem", table("b"))],
            ),
            (
                "TransactWriteItems",
                json!({"TransactItems": [
                    {"Put": {"TableName": "a"}}, {"Update": {"TableName": "a"}}, {"Delete": {"TableName": "b"}},
                    {"ConditionCheck": {"TableName": "b"}},
                ]}),
                vec![
                    ("PutItem", table("a")),
                    ("UpdateItem", table("a")),
                    ("DeleteItem", table("b")),
                    ("ConditionCheckItem", table("b")),
                ],
            ),
            (
                "TransactGetItems",
                json!({"TransactItems": [{"Get": {"TableName": "a"}}]}),
                vec![("GetItem", table("a"))],
            ),
            (
                "ListTables",
                json!({}),
                vec![("ListTables", "*".to_owned())],
            ),
        ] {
            let asked: Vec<(String, String)> = asked(operation, &input)
                .into_iter()
                .map(|one| (one.action, one.resource))
                .collect();
            let expected: Vec<(String, String)> = expected
                .into_iter()
                .map(|(action, resource)| (format!("dynamodb:{action}"), resource))
                .collect();
            assert_eq!(asked, expected, "{operation}");
        }
        assert_eq!(asked("ExecuteStatement", &json!({})).len(), 4);
    }
}
