//! The permissions that operations of DynamoDB need.
//!
//! Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon
//! DynamoDB"; DynamoDB Developer Guide, "Amazon DynamoDB Transactions" for the actions of their
//! items, and "Using IAM policy conditions for fine-grained access control" for the key
//! `dynamodb:LeadingKeys`: the partitions that a request names. A scan names none.

use serde_json::Value;

use super::access::{Asked, table_arn};
use super::conditions::{Context, LEADING_KEYS};

/// Returns what a request asks for; `partition_key` returns the name of the partition key of a
/// table by the name of the table.
pub(crate) fn asked(
    operation: &str,
    input: &Value,
    partition_key: impl Fn(&str) -> Option<String>,
) -> Vec<Asked> {
    let action = format!("dynamodb:{operation}");
    // What is asked of a table, for items of these partitions.
    let of_partitions = |action: &str, table: &str, partitions: &dyn Fn(&str) -> Vec<String>| {
        let name = table.rsplit('/').next().unwrap_or(table);
        let partitions = partition_key(name).map(|key| partitions(&key));
        Asked {
            action: action.to_owned(),
            resource: table_arn(table),
            context: Context::default().with_all(LEADING_KEYS, partitions.unwrap_or_default()),
        }
    };
    let on = |action: &str, input: &Value| {
        of_partitions(action, table_of(input), &|key| {
            partition_of(input, key).into_iter().collect()
        })
    };
    match operation {
        "BatchGetItem" | "BatchWriteItem" => {
            let tables = input["RequestItems"].as_object().into_iter().flatten();
            let of_table = |(table, items): (&String, &Value)| {
                of_partitions(&action, table, &|key| partitions_of_batch(items, key))
            };
            tables.map(of_table).collect()
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
                on(action, item)
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
            let index = input["IndexName"].as_str();
            vec![match index {
                // An index has a partition key of its own, which is not looked up.
                Some(index) => {
                    let table = table_arn(table_of(input));
                    Asked::new(action, format!("{table}/index/{index}"))
                }
                None => of_partitions(&action, table_of(input), &|key| {
                    partition_of_query(input, key).into_iter().collect()
                }),
            }]
        }
        _ if input["TableName"].is_string() => vec![on(&action, input)],
        _ => vec![Asked::new(action, "*")],
    }
}

fn table_of(input: &Value) -> &str {
    input["TableName"].as_str().unwrap_or_default()
}

/// Returns the partition of an item that is read or written by its key, or written as a whole.
fn partition_of(input: &Value, key: &str) -> Option<String> {
    text_of(&input["Key"][key]).or_else(|| text_of(&input["Item"][key]))
}

/// Returns the partitions in what a batch reads from or writes to a table.
fn partitions_of_batch(items: &Value, key: &str) -> Vec<String> {
    let read = items["Keys"].as_array().into_iter().flatten();
    let read = read.filter_map(|item| text_of(&item[key]));
    let written = items.as_array().into_iter().flatten();
    let written = written.filter_map(|item| {
        let put = partition_of(&item["PutRequest"], key);
        put.or_else(|| partition_of(&item["DeleteRequest"], key))
    });
    read.chain(written).collect()
}

/// Returns the partition that a query reads: DynamoDB accepts only queries that say what the
/// partition key is equal to.
fn partition_of_query(input: &Value, key: &str) -> Option<String> {
    let expression = input["KeyConditionExpression"].as_str().unwrap_or_default();
    let name_of = |text: &str| {
        let named = input["ExpressionAttributeNames"][text].as_str();
        named.unwrap_or(text).to_owned()
    };
    let spaced = expression.replace(['(', ')'], " ").replace('=', " = ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut values = words.windows(3).filter_map(|words| match words {
        [left, "=", right] if name_of(left) == key => {
            text_of(&input["ExpressionAttributeValues"][*right])
        }
        _ => None,
    });
    // Requests without expressions have conditions in an older form.
    let older = || text_of(&input["KeyConditions"][key]["AttributeValueList"][0]);
    values.next().or_else(older)
}

/// Returns the value of an attribute, whatever its type is.
fn text_of(attribute: &Value) -> Option<String> {
    let (_, value) = attribute.as_object()?.iter().next()?;
    value.as_str().map(str::to_owned)
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
            let asked: Vec<(String, String)> = asked(operation, &input, |_| None)
                .into_iter()
                .map(|one| (one.action, one.resource))
                .collect();
            let expected: Vec<(String, String)> = expected
                .into_iter()
                .map(|(action, resource)| (format!("dynamodb:{action}"), resource))
                .collect();
            assert_eq!(asked, expected, "{operation}");
        }
        assert_eq!(asked("ExecuteStatement", &json!({}), |_| None).len(), 4);
    }

    #[test]
    fn the_partitions_of_a_request_are_known_wherever_it_names_them() {
        let item = |partition: &str| json!({"p": {"S": partition}, "s": {"S": "sort"}});
        let key_conditions = |expression: &str| {
            json!({
                "TableName": "a", "KeyConditionExpression": expression,
                "ExpressionAttributeNames": {"#p": "p"},
                "ExpressionAttributeValues": {":p": {"S": "x"}, ":s": {"S": "y"}, ":t": {"S": "z"}},
            })
        };
        let by_key = json!({"TableName": "a", "Key": item("x")});
        let table = "arn:aws:dynamodb:us-east-1:000000000000:table/a";
        for (operation, input, expected) in [
            ("GetItem", by_key.clone(), vec![vec!["x"]]),
            ("DeleteItem", by_key.clone(), vec![vec!["x"]]),
            ("UpdateItem", by_key, vec![vec!["x"]]),
            (
                "PutItem",
                json!({"TableName": table, "Item": item("x")}),
                vec![vec!["x"]],
            ),
            (
                "BatchGetItem",
                json!({"RequestItems": {"a": {"Keys": [item("x"), item("y")]}}}),
                vec![vec!["x", "y"]],
            ),
            (
                "BatchWriteItem",
                json!({"RequestItems": {"a": [
                    {"PutRequest": {"Item": item("x")}}, {"DeleteRequest": {"Key": item("y")}},
                ]}}),
                vec![vec!["x", "y"]],
            ),
            (
                "TransactWriteItems",
                json!({"TransactItems": [
                    {"Put": {"TableName": "a", "Item": item("x")}},
                    {"Update": {"TableName": "a", "Key": item("y")}},
                    {"ConditionCheck": {"TableName": "a", "Key": item("z")}},
                ]}),
                vec![vec!["x"], vec!["y"], vec!["z"]],
            ),
            ("Query", key_conditions("#p = :p"), vec![vec!["x"]]),
            ("Query", key_conditions("(p=:p)"), vec![vec!["x"]]),
            (
                "Query",
                key_conditions("s BETWEEN :s AND :t AND #p=:p"),
                vec![vec!["x"]],
            ),
            (
                "Query",
                json!({"TableName": "a", "KeyConditions": {"p": {
                    "AttributeValueList": [{"S": "x"}], "ComparisonOperator": "EQ",
                }}}),
                vec![vec!["x"]],
            ),
            ("Scan", json!({"TableName": "a"}), vec![vec![]]),
            // The partition key of another table is not known.
            (
                "GetItem",
                json!({"TableName": "b", "Key": item("x")}),
                vec![vec![]],
            ),
        ] {
            let key_of = |table: &str| (table == "a").then(|| "p".to_owned());
            let found: Vec<Context> = asked(operation, &input, key_of)
                .into_iter()
                .map(|one| one.context)
                .collect();
            let expected: Vec<Context> = expected
                .into_iter()
                .map(|partitions: Vec<&str>| {
                    let partitions = partitions.into_iter().map(str::to_owned).collect();
                    Context::default().with_all(LEADING_KEYS, partitions)
                })
                .collect();
            assert_eq!(found, expected, "{operation} {input}");
        }
    }
}
