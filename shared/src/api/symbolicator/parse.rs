//! Parsing of request bodies, with an explanation of what is wrong with an invalid one.

use std::io;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use super::{Request, RequestError};
use crate::api::limits;

/// Parses the body of `/symbolicate`.
///
/// The caller must limit the length of the body to [`limits::BODY_BYTES`].
///
/// # Errors
///
/// [`RequestError::Syntax`] if the body is not JSON, [`RequestError::Schema`] if it is JSON of
/// another shape, [`RequestError::TooLarge`] if it exceeds [`limits`], and
/// [`RequestError::Sources`] if its sources do.
pub fn parse_request(body: &[u8]) -> Result<Request, RequestError> {
    let body = without_byte_order_mark(body);
    match serde_json::from_slice::<Request>(body) {
        Ok(request) if is_object(body) => check_limits(&request).map(|()| request),
        _ => Err(explain(body)),
    }
}

/// Returns a body without the byte order mark that some clients, such as PowerShell, put before
/// JSON in UTF-8. Parsers may ignore it (RFC 8259, section 8.1).
pub(in crate::api) fn without_byte_order_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

/// Returns whether JSON is an object. Serde also accepts a list of a struct's values, which no
/// client means.
fn is_object(json: &[u8]) -> bool {
    json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Parses the body of another route.
///
/// # Errors
///
/// [`RequestError::Syntax`] if it is not JSON, and [`RequestError::Schema`] if it is JSON of another
/// shape.
pub(in crate::api) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, RequestError> {
    let body = without_byte_order_mark(body);
    let syntax = |error: &serde_json::Error| RequestError::Syntax {
        cause: error.to_string(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize::<_, T>(&mut deserializer).map_err(|error| {
        let (path, cause) = (error.path().to_string(), error.inner());
        // If the name of a variant is expected, the parser reports `null` as a syntax error.
        if cause.is_data() || is_json(body) {
            RequestError::Schema {
                path: if path == "." { String::new() } else { path },
                cause: cause.to_string(),
            }
        } else {
            syntax(cause)
        }
    })?;
    deserializer.end().map_err(|error| syntax(&error))?;
    if is_object(body) {
        Ok(parsed)
    } else {
        Err(RequestError::Schema {
            path: String::new(),
            cause: "expected a JSON object".to_owned(),
        })
    }
}

/// Returns what is wrong with a body. This may take several passes, because it happens rarely.
fn explain(body: &[u8]) -> RequestError {
    if let Some(encoding) = compressed_with(body) {
        let cause = format!(
            "it is compressed with {encoding}, which is not supported: send it uncompressed"
        );
        return RequestError::Syntax { cause };
    }
    // Malformed JSON anywhere takes precedence over a wrong field before it.
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(body) {
        return RequestError::Syntax {
            cause: error.to_string(),
        };
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, Request>(&mut deserializer) {
        Ok(_) => RequestError::Schema {
            path: String::new(),
            cause: "expected a JSON object".to_owned(),
        },
        Err(error) => {
            let path = error.path().to_string();
            let cause = error.into_inner();
            // If the name of a variant is expected, the parser reports `null` as a syntax error.
            if cause.classify() == Category::Data || is_json(body) {
                RequestError::Schema {
                    path: if path == "." { String::new() } else { path },
                    cause: cause.to_string(),
                }
            } else {
                RequestError::Syntax {
                    cause: cause.to_string(),
                }
            }
        }
    }
}

/// Returns the compression of a body, if it is compressed.
fn compressed_with(body: &[u8]) -> Option<&'static str> {
    match body {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        _ => None,
    }
}

/// Returns whether a body is valid JSON, including its strings and numbers, without keeping any of
/// it.
fn is_json(body: &[u8]) -> bool {
    let mut from = serde_json::Deserializer::from_slice(body);
    let mut to = serde_json::Serializer::new(io::sink());
    serde_transcode::transcode(&mut from, &mut to).is_ok()
}

/// Checks a request against the limits.
fn check_limits(request: &Request) -> Result<(), RequestError> {
    let frames = request
        .stacktraces
        .iter()
        .map(|stacktrace| stacktrace.frames.len())
        .sum();
    let registers = request
        .stacktraces
        .iter()
        .map(|stacktrace| stacktrace.registers.len())
        .max()
        .unwrap_or_default();
    for (what, count, limit) in [
        (
            "stack traces",
            request.stacktraces.len(),
            limits::STACKTRACES,
        ),
        ("frames", frames, limits::FRAMES),
        ("modules", request.modules.len(), limits::MODULES),
        ("registers of one stack trace", registers, limits::REGISTERS),
    ] {
        if count > limit {
            return Err(RequestError::TooLarge { what, limit });
        }
    }
    request.sources.check_limits()?;
    request.scraping.check_limits()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::symbolicator::{FrameOrder, Sources};

    #[test]
    fn an_error_says_what_was_expected_in_the_words_of_the_document() {
        let cause = |body: &str| {
            let error = parse_request(body.as_bytes()).unwrap_err();
            error.body().causes.join("; ")
        };
        let source = |fields: &str| {
            format!(
                r#"{{"sources": [{{"type": "http", "id": "a", "url": "https://a.test/"{fields}}}]}}"#
            )
        };
        for (body, expected) in [
            ("5".to_owned(), "expected an object at line 1"),
            (source(r#", "filters": 5"#), "expected an object"),
            (source(r#", "layout": "native""#), "expected an object"),
            (source(r#", "layout": {"type": 5}"#), "expected a string"),
            (source(r#", "layout": {"type": {}}"#), "expected a string"),
            (
                source(r#", "filters": {"filetypes": [5]}"#),
                "expected the type of a file",
            ),
            (
                r#"{"sources": [{"type": "s3", "id": "a", "bucket": "b", "region": 5}]}"#
                    .to_owned(),
                "expected the name of a region",
            ),
            (
                r#"{"sources": [{"type": "filesystem"}]}"#.to_owned(),
                "expected one of `http`, `s3`, `gcs`, `sentry`",
            ),
        ] {
            let cause = cause(&body);
            assert!(cause.contains(expected), "{body}: {cause}");
            for internal in ["struct", "enum", "Extended", "sourcelink", "or map"] {
                assert!(!cause.contains(internal), "{body}: {cause}");
            }
        }
    }

    #[test]
    fn null_in_the_place_of_a_name_is_json_of_another_shape() {
        let body = br#"{"options": {"frame_order": null}}"#;
        let error = parse_request(body).unwrap_err();
        assert_eq!(error.status(), 422);
        // As another route reads it.
        let error = parse_body::<Request>(body).unwrap_err();
        assert_eq!(error.status(), 422);
        let error = parse_body::<Request>(&body[..body.len() - 1]).unwrap_err();
        assert_eq!(error.status(), 400);
    }

    #[test]
    fn an_empty_request_is_valid() {
        let request = parse_request(b"{}").unwrap();
        assert_eq!(request, Request::default());
        assert_eq!(request.sources, Sources::Configured);
        assert!(request.options.apply_source_context && !request.options.dif_candidates);
        assert_eq!(request.options.frame_order, FrameOrder::CalleeFirst);
    }

    #[test]
    fn a_byte_order_mark_before_a_body_is_skipped() {
        let body = "\u{feff}{\"signal\": 11}".as_bytes();
        assert_eq!(parse_request(body).unwrap().signal, Some(11));
        let of_another_route: Value = parse_body(body).unwrap();
        assert_eq!(of_another_route, json!({"signal": 11}));
        let error = parse_request("\u{feff}{\"signal\": -1}".as_bytes()).unwrap_err();
        assert_eq!(error.status(), 422);
    }

    #[test]
    fn a_request_survives_the_round_trip_without_its_unknown_fields() {
        let sent = json!({
            "platform": "native", "signal": 11, "unknown": [{}], "scraping": {"enabled": false, "allowed_origins": ["a.test"], "headers": {"x": "y"}}, "sources": ["uploads"],
            "stacktraces": [{
                "thread_id": 7, "thread_name": "main", "is_requesting": true, "registers": {"rip": 4096},
                "frames": [{
                    "platform": "native", "addr_mode": "rel:0", "instruction_addr": "4096", "adjust_instruction_addr": true,
                    "function_id": 1, "package": "p", "lang": "cpp", "symbol": "s", "sym_addr": "0X1000", "function": "f",
                    "filename": "n", "abs_path": "/n", "lineno": 3, "pre_context": ["a"], "context_line": "b",
                    "post_context": ["c"], "source_link": "l", "in_app": false, "vars": {"x": {"y": 1}}, "trust": "prewalked",
                    "unknown": 1
                }]
            }],
            "modules": [{
                "type": "macho", "code_id": "AB-CD", "code_file": "c", "debug_id": "502FC0A51EC13E479998684FA139DCA7a",
                "debug_file": "d", "debug_checksum": "SHA256:0", "image_addr": 4096, "image_size": 7
            }],
            "options": {"dif_candidates": true, "apply_source_context": false, "frame_order": "caller_first", "extract_variables": true}
        });
        let request = parse_request(sent.to_string().as_bytes()).unwrap();
        let mut want = sent.clone();
        want["stacktraces"][0]["registers"] = json!({"rip": "0x1000"});
        let frame = &mut want["stacktraces"][0]["frames"][0];
        frame["instruction_addr"] = json!("0x1000");
        frame["function_id"] = json!("0x1");
        frame["sym_addr"] = json!("0x1000");
        frame.as_object_mut().unwrap().remove("unknown");
        let module = &mut want["modules"][0];
        module["code_id"] = json!("abcd");
        module["debug_id"] = json!("502fc0a5-1ec1-3e47-9998-684fa139dca7-a");
        module["image_addr"] = json!("0x1000");
        want.as_object_mut()
            .unwrap()
            .retain(|field, _| field != "unknown");
        assert_eq!(serde_json::to_value(&request).unwrap(), want);
        assert_eq!(parse_request(want.to_string().as_bytes()).unwrap(), request);
    }

    #[test]
    fn invalid_ids_are_dropped() {
        let check = |field: &str, id: Value, want: Option<&str>| {
            let body = json!({"modules": [{"type": "elf", field: id}]});
            let request = parse_request(body.to_string().as_bytes()).unwrap();
            let module = serde_json::to_value(&request.modules[0]).unwrap();
            assert_eq!(module.get(field).and_then(Value::as_str), want, "{body}");
        };
        check("code_id", json!(""), None);
        check("code_id", json!("none"), Some("e")); // other characters than digits are dropped
        check("code_id", json!("--"), None);
        check("code_id", json!(null), None);
        check("debug_id", json!(""), None);
        check("debug_id", json!("no id"), None);
        check("debug_id", json!(null), None);
        check(
            "debug_id",
            json!("0c1033f78632492e91c6c314b72e1920e60b819d"),
            Some("0c1033f7-8632-492e-91c6-c314b72e1920-e60b819d"),
        );
        check("type", json!("elf"), Some("elf"));
    }

    #[test]
    fn an_unsupported_type_is_unknown() {
        let request =
            parse_request(br#"{"modules": [{"type": "coff"}, {"type": "pe_dotnet"}]}"#).unwrap();
        assert_eq!(
            serde_json::to_value(&request.modules).unwrap(),
            json!([
                {"type": "unknown", "image_addr": "0x0"}, {"type": "pe_dotnet", "image_addr": "0x0"}
            ])
        );
    }

    #[test]
    fn a_body_that_is_not_json_is_a_bad_request() {
        for body in [
            "",
            " ",
            "{",
            "nul",
            "{}{}",
            "{'a': 1}",
            r#"{"signal": 01}"#,
            "\u{feff}",
            "\u{feff}\u{feff}{}",
            " \u{feff}{}",
            r#"{"modules": 5, "#,
            r#"{"stacktraces": [{"frames": [{"instruction_addr": "x"}]}"#,
        ] {
            let error = parse_request(body.as_bytes()).unwrap_err();
            assert_eq!(
                (error.status(), error.body().causes.len()),
                (400, 1),
                "{body:?}: {error:?}"
            );
        }
        assert_eq!(
            parse_request(b"{\"platform\": \"\xff\"}")
                .unwrap_err()
                .status(),
            400
        );
    }

    #[test]
    fn a_compressed_body_is_reported_as_such() {
        for (body, encoding) in [
            (&b"\x1f\x8b\x08\0"[..], "gzip"),
            (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        ] {
            let error = parse_request(body).unwrap_err();
            assert_eq!(error.status(), 400);
            let cause = &error.body().causes[0];
            assert!(
                cause.contains(&format!("compressed with {encoding}")),
                "{cause}"
            );
        }
    }

    #[test]
    fn json_of_another_shape_is_refused_with_the_field() {
        let check = |body: &str, path: &str, cause: &str| match parse_request(body.as_bytes())
            .unwrap_err()
        {
            RequestError::Schema {
                path: found,
                cause: found_cause,
            } => {
                assert_eq!(found, path, "{body}");
                assert!(found_cause.contains(cause), "{body}: {found_cause}");
            }
            error => panic!("{body}: {error:?}"),
        };
        check("[]", "", "expected a JSON object");
        check("null", "", "invalid type: null");
        check(r#""text""#, "", "invalid type: string");
        check(
            r#"{"stacktraces": {}}"#,
            "stacktraces",
            "expected a sequence",
        );
        check(
            r#"{"stacktraces": [{}]}"#,
            "stacktraces[0]",
            "missing field `frames`",
        );
        check(
            r#"{"stacktraces": [{"frames": [{}]}]}"#,
            "stacktraces[0].frames[0]",
            "missing field `instruction_addr`",
        );
        check(
            r#"{"stacktraces": [{"frames": [{"instruction_addr": 1}, {"instruction_addr": "0xg"}]}]}"#,
            "stacktraces[0].frames[1].instruction_addr",
            "a 64-bit number",
        );
        check(
            r#"{"stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "rel:x"}]}]}"#,
            "stacktraces[0].frames[0].addr_mode",
            "followed by the index of a module",
        );
        check(
            r#"{"stacktraces": [{"frames": [{"instruction_addr": 1, "trust": "blind"}]}]}"#,
            "stacktraces[0].frames[0].trust",
            "unknown variant",
        );
        check(
            r#"{"stacktraces": [{"frames": [{"instruction_addr": 1, "lang": "latin"}]}]}"#,
            "stacktraces[0].frames[0].lang",
            "language",
        );
        check(
            r#"{"stacktraces": [{"frames": [], "registers": {"rip": -1}}]}"#,
            "stacktraces[0].registers.rip",
            "a 64-bit number",
        );
        check(r#"{"modules": [{}]}"#, "modules[0]", "missing field `type`");
        check(r#"{"signal": -1}"#, "signal", "invalid value");
        check(
            r#"{"sources": [{"id": "a"}]}"#,
            "sources[0]",
            "missing field `type`",
        );
        check(
            r#"{"options": {"frame_order": "random"}}"#,
            "options.frame_order",
            "unknown variant",
        );
        check(r#"{"signal": 1, "signal": 2}"#, "", "duplicate field");
    }

    #[test]
    fn malformed_json_after_a_wrong_field_is_reported_first() {
        assert_eq!(
            parse_request(br#"{"signal": -1, "modules": ["#)
                .unwrap_err()
                .status(),
            400
        );
        assert_eq!(
            parse_request(br#"{"signal": -1, "modules": []}"#)
                .unwrap_err()
                .status(),
            422
        );
    }

    #[test]
    fn a_number_over_its_limit_is_too_large() {
        let check = |body: Value, what: &str, limit: usize| {
            let error = parse_request(body.to_string().as_bytes()).unwrap_err();
            assert_eq!(
                (error.status(), error.to_string().contains(what)),
                (413, true),
                "{error}"
            );
            assert!(error.to_string().contains(&limit.to_string()), "{error}");
        };
        let frames = |count: usize| json!({"frames": vec![json!({"instruction_addr": 0}); count]});
        check(
            json!({"stacktraces": vec![frames(0); limits::STACKTRACES + 1]}),
            "stack traces",
            limits::STACKTRACES,
        );
        check(
            json!({"stacktraces": [frames(limits::FRAMES), frames(1)]}),
            "frames",
            limits::FRAMES,
        );
        check(
            json!({"modules": vec![json!({"type": "elf"}); limits::MODULES + 1]}),
            "modules",
            limits::MODULES,
        );
        let registers: serde_json::Map<_, _> = (0..=limits::REGISTERS)
            .map(|index| (index.to_string(), json!(0)))
            .collect();
        check(
            json!({"stacktraces": [{"frames": [], "registers": registers}]}),
            "registers",
            limits::REGISTERS,
        );
        parse_request(
            json!({"stacktraces": [frames(limits::FRAMES)]})
                .to_string()
                .as_bytes(),
        )
        .unwrap();
    }

    /// Any JSON, with field names of requests more often than other names.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "(0x|rel:|abs|elf|caller_first)?[0-9a-f]{0,17}".prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        let field = prop_oneof![
            prop::sample::select(vec![
                "stacktraces",
                "frames",
                "modules",
                "options",
                "sources",
                "signal",
                "registers",
                "type",
                "id",
                "instruction_addr",
                "addr_mode",
                "image_addr",
                "image_size",
                "code_id",
                "debug_id",
                "trust",
                "lang",
                "vars",
                "pre_context",
                "frame_order",
            ])
            .prop_map(str::to_owned),
            ".{0,4}",
        ];
        leaf.prop_recursive(6, 64, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(field.clone(), inner, 0..6)
                    .prop_map(|object| object.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_a_request_or_is_refused(json in any_json()) {
            let body = json.to_string();
            match parse_request(body.as_bytes()) {
                Ok(request) => {
                    let again = serde_json::to_vec(&request).unwrap();
                    prop_assert_eq!(parse_request(&again).unwrap(), request);
                }
                Err(error) => prop_assert_eq!(error.status(), 422),
            }
        }

        #[test]
        fn any_bytes_are_a_request_or_are_refused(body in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Err(error) = parse_request(&body) {
                prop_assert!([400, 422].contains(&error.status()));
            }
        }
    }
}
