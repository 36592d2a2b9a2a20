//! Formats JSON as lines that a person can review: `path.to.field: value`.

use std::fmt;

use serde_json::Value;

/// Writes one line per leaf, each after `indent`. Empty lists and objects are leaves.
pub(super) fn write_lines(f: &mut fmt::Formatter<'_>, indent: &str, value: &Value) -> fmt::Result {
    write_at(f, indent, &mut String::new(), value)
}

fn write_at(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    path: &mut String,
    value: &Value,
) -> fmt::Result {
    let length = path.len();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                if length > 0 {
                    path.push('.');
                }
                path.push_str(name);
                write_at(f, indent, path, value)?;
                path.truncate(length);
            }
            Ok(())
        }
        Value::Array(values) if !values.is_empty() => {
            for (index, value) in values.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                write_at(f, indent, path, value)?;
                path.truncate(length);
            }
            Ok(())
        }
        Value::String(text) if text.contains('\n') => writeln!(f, "{indent}{path}: {text:?}"),
        Value::String(text) => writeln!(f, "{indent}{path}: {text}"),
        _ => writeln!(f, "{indent}{path}: {value}"),
    }
}
