//! The format of items in DynamoDB. Every later release must be able to read the items that are
//! stored today.
//!
//! | Attribute | Type | Content |
//! |---|---|---|
//! | `partition`, `sort` | S | the primary key |
//! | `revision` | S | what the next write must name |
//! | `schema` | N | [`SCHEMA`]; an item of a newer release has a larger one and is not parsed |
//! | `type` | S | the kind of item |
//! | `expires_at` | N | when DynamoDB may delete the item, in seconds since the epoch; optional |
//! | all others | | the item's own fields, under their own names |

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_dynamo::aws_sdk_dynamodb_1::{from_attribute_value, from_item, to_item};

use crate::cache::{Item, ItemKey, Revision, SCHEMA, Stored};
use crate::ports::{Fault, FaultKind};

/// The attributes of an item.
pub(super) type Attributes = HashMap<String, AttributeValue>;

pub(super) const PARTITION: &str = "partition";
pub(super) const SORT: &str = "sort";
pub(super) const REVISION: &str = "revision";
pub(super) const SCHEMA_NUMBER: &str = "schema";
const EXPIRES_AT: &str = "expires_at";

/// Attributes of the store; no field of an item may have one of these names.
const RESERVED: [&str; 4] = [PARTITION, SORT, REVISION, SCHEMA_NUMBER];

/// Returns an item's attributes.
pub(super) fn write(key: &ItemKey, stored: &Stored) -> Result<Attributes, Fault> {
    let bug = |cause: String| Fault::new(FaultKind::Bug, context("writing", key)).caused_by(cause);
    if let Item::Newer { schema } = stored.item {
        return Err(bug(format!(
            "the item has schema {schema}, which only a newer release may write"
        )));
    }
    let mut attributes: Attributes =
        to_item(&stored.item).map_err(|error| bug(error.to_string()))?;
    if let Some(name) = RESERVED
        .into_iter()
        .find(|name| attributes.contains_key(*name))
    {
        return Err(bug(format!(
            "the item's field {name} has the name of a reserved attribute; rename the field"
        )));
    }
    attributes.insert(
        PARTITION.to_owned(),
        AttributeValue::S(key.partition.clone()),
    );
    attributes.insert(SORT.to_owned(), AttributeValue::S(key.sort.clone()));
    attributes.insert(
        REVISION.to_owned(),
        AttributeValue::S(stored.revision.as_str().to_owned()),
    );
    attributes.insert(
        SCHEMA_NUMBER.to_owned(),
        AttributeValue::N(stored.item.schema().to_string()),
    );
    let expires_at = stored
        .item
        .expires_at()
        .map(|at| AttributeValue::N(at.as_secs().to_string()));
    if attributes.get(EXPIRES_AT) != expires_at.as_ref() {
        return Err(bug(format!(
            "the item's field {EXPIRES_AT} is not its time of expiry; rename the field"
        )));
    }
    Ok(attributes)
}

/// Returns the key of an item.
pub(super) fn key(attributes: &Attributes) -> Result<ItemKey, Fault> {
    let text = |name: &str| {
        attributes
            .get(name)
            .and_then(|value| value.as_s().ok())
            .cloned()
    };
    let key = text(PARTITION)
        .zip(text(SORT))
        .map(|(partition, sort)| ItemKey { partition, sort });
    key.ok_or_else(|| {
        Fault::new(
            FaultKind::Corrupt,
            "reading a DynamoDB item whose key is not a string",
        )
    })
}

/// Returns the key and the content of an item.
///
/// An item of a newer schema, or one that cannot be parsed, is [`Item::Newer`]. It is not used,
/// written or removed, and does not affect other items of the same load.
pub(super) fn read(attributes: Attributes) -> Result<(ItemKey, Stored), Fault> {
    let key = key(&attributes)?;
    let stored = parse(attributes).unwrap_or_else(|cause| {
        let record = context("reading", &key);
        tracing::error!(record, cause, "unreadable record ignored");
        Stored {
            revision: Revision::from_random(0),
            item: Item::Newer { schema: SCHEMA },
        }
    });
    Ok((key, stored))
}

fn parse(mut attributes: Attributes) -> Result<Stored, String> {
    let schema = attributes
        .remove(SCHEMA_NUMBER)
        .ok_or("the item has no schema")?;
    let schema: u32 =
        from_attribute_value(schema).map_err(|error| format!("the item's schema: {error}"))?;
    let revision = attributes
        .remove(REVISION)
        .ok_or("the item has no revision")?;
    let revision: Revision =
        from_attribute_value(revision).map_err(|error| format!("the item's revision: {error}"))?;
    if schema > SCHEMA {
        let item = Item::Newer { schema };
        return Ok(Stored { revision, item });
    }
    attributes.retain(|name, _| !RESERVED.contains(&name.as_str()));
    let item = from_item(attributes).map_err(|error| error.to_string())?;
    Ok(Stored { revision, item })
}

fn context(doing: &str, key: &ItemKey) -> String {
    format!("{doing} DynamoDB item {} {}", key.partition, key.sort)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof, proptest};
    use proptest::{collection, option, prop_assert_eq};
    use serde_json::{Value, json};

    use super::*;

    /// Parses DynamoDB's own JSON, as `aws dynamodb get-item` prints it.
    fn attribute(value: &Value) -> AttributeValue {
        let (name, value) = value.as_object().unwrap().iter().next().unwrap();
        match name.as_str() {
            "S" => AttributeValue::S(value.as_str().unwrap().to_owned()),
            "N" => AttributeValue::N(value.as_str().unwrap().to_owned()),
            "BOOL" => AttributeValue::Bool(value.as_bool().unwrap()),
            "L" => AttributeValue::L(value.as_array().unwrap().iter().map(attribute).collect()),
            "M" => AttributeValue::M(attributes(value)),
            _ => panic!("{name}"),
        }
    }

    fn attributes(value: &Value) -> Attributes {
        value
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), attribute(value)))
            .collect()
    }

    fn golden() -> Attributes {
        attributes(&serde_json::from_str(include_str!("golden_entry.json")).unwrap())
    }

    #[test]
    fn an_entry_of_an_earlier_release_stays_readable() {
        let (key, stored) = read(golden()).unwrap();
        let Item::Entry(entry) = &stored.item else {
            panic!("{stored:?}")
        };
        assert_eq!(stored.item.key(), Some(key));
        assert_eq!(
            stored.revision,
            Revision::from_random(0x0123_4567_89ab_cdef)
        );
        let ready = entry.ready().unwrap();
        assert_eq!(ready.blob.checksum, u64::MAX);
        assert_eq!(
            ready.made_from[0].location.as_str(),
            "global/größe/app.debug"
        );
        assert_eq!(
            entry.missing().unwrap().missing.cause,
            crate::domain::Cause::TooLarge { limit: 1 << 33 }
        );
        assert_eq!(
            entry.lease().unwrap().holder,
            "8476a536-e9f4-11e8-9739-2dfe598c3fcd"
        );
        assert_eq!(entry.candidates().len(), 2);
    }

    #[test]
    fn items_of_earlier_releases_are_written_unchanged() {
        let (key, stored) = read(golden()).unwrap();
        // One text is written in another way: earlier releases stored it as the PDB has it.
        let golden = include_str!("golden_entry.json").replace("Perforce", "perforce");
        let (written, golden) = (
            AttributeValue::M(write(&key, &stored).unwrap()),
            AttributeValue::M(attributes(&serde_json::from_str(&golden).unwrap())),
        );
        assert!(
            contains(&written, &golden),
            "{written:#?}\ndoes not contain\n{golden:#?}"
        );
    }

    /// Returns whether all of `old` is in `new`, which may have further fields.
    fn contains(new: &AttributeValue, old: &AttributeValue) -> bool {
        match (new, old) {
            (AttributeValue::M(new), AttributeValue::M(old)) => old
                .iter()
                .all(|(name, old)| new.get(name).is_some_and(|new| contains(new, old))),
            (AttributeValue::L(new), AttributeValue::L(old)) => {
                new.len() == old.len() && new.iter().zip(old).all(|(new, old)| contains(new, old))
            }
            _ => new == old,
        }
    }

    #[test]
    fn an_item_of_a_newer_schema_is_neither_parsed_nor_written() {
        let mut newer = golden();
        newer.insert(
            SCHEMA_NUMBER.to_owned(),
            AttributeValue::N((SCHEMA + 1).to_string()),
        );
        newer.insert("kind".to_owned(), AttributeValue::Bool(true));
        let (key, stored) = read(newer).unwrap();
        assert_eq!(stored.item, Item::Newer { schema: SCHEMA + 1 });
        assert_eq!(write(&key, &stored).unwrap_err().kind(), FaultKind::Bug);
    }

    #[test]
    fn an_item_that_cannot_be_parsed_is_kept_and_does_not_affect_others() {
        let spoil: [(&str, Option<AttributeValue>); 7] = [
            ("schema", None),
            ("schema", Some(AttributeValue::S("1".to_owned()))),
            ("revision", None),
            ("type", None),
            ("type", Some(AttributeValue::S("wish".to_owned()))),
            ("last_used_at", None),
            ("last_used_at", Some(AttributeValue::N("-1".to_owned()))),
        ];
        for (name, value) in spoil {
            let mut spoilt = golden();
            match value.clone() {
                Some(value) => spoilt.insert(name.to_owned(), value),
                None => spoilt.remove(name),
            };
            let (key, stored) = read(spoilt).unwrap();
            assert_eq!(key.sort, "symcache", "{name} {value:?}");
            assert_eq!(
                stored.item,
                Item::Newer { schema: SCHEMA },
                "{name} {value:?}"
            );
        }
    }

    #[test]
    fn an_item_with_any_value_of_a_newer_release_is_kept() {
        let places = [
            ("kind", "symcache_of_tomorrow"),
            ("ready.file_type", "elf_of_tomorrow"),
            ("ready.quality", "splendid"),
            ("missing.cause", "tomorrow"),
            ("ask.lane", "tomorrow"),
        ];
        for (path, word) in places {
            let mut newer = AttributeValue::M(golden());
            let mut place = &mut newer;
            for name in path.split('.') {
                let AttributeValue::M(fields) = place else {
                    panic!("{path}");
                };
                place = fields
                    .get_mut(name)
                    .unwrap_or_else(|| panic!("the golden entry has no {path}"));
            }
            *place = AttributeValue::S(word.to_owned());
            let AttributeValue::M(newer) = newer else {
                panic!("{path}");
            };
            let (_, stored) = read(newer).unwrap();
            assert_eq!(stored.item, Item::Newer { schema: SCHEMA }, "{path}");
        }
        for item in [
            json!({"type": "upload", "key": "global/a", "etag": "e", "sequencer": "0", "size": 1, "state": "tomorrow", "at": 5}),
            json!({"type": "dif", "file_type": "elf_of_tomorrow"}),
            json!({"type": "item_of_tomorrow"}),
        ] {
            let fields = item.as_object().unwrap().iter();
            let text = |value: &Value| value.as_str().map(|text| AttributeValue::S(text.into()));
            let number = |value: &Value| AttributeValue::N(value.to_string());
            let mut record: Attributes = fields
                .map(|(name, value)| (name.clone(), text(value).unwrap_or_else(|| number(value))))
                .collect();
            for name in [PARTITION, SORT, REVISION, SCHEMA_NUMBER] {
                record.insert(name.to_owned(), golden()[name].clone());
            }
            let (_, stored) = read(record).unwrap();
            assert_eq!(stored.item, Item::Newer { schema: SCHEMA }, "{item}");
        }
    }

    #[test]
    fn an_item_is_written_with_the_least_schema_that_can_read_it() {
        let (key, entry) = read(golden()).unwrap();
        let schema = |stored: &Stored| write(&key, stored).unwrap()[SCHEMA_NUMBER].clone();
        assert_eq!(schema(&entry), AttributeValue::N("1".to_owned()));
        let presence = json!({"type": "presence", "module": {"scope": "global", "source": "uploads", "module": "x"}, "change": "01"});
        let presence = Stored {
            item: serde_json::from_value(presence).unwrap(),
            ..entry
        };
        assert_eq!(schema(&presence), AttributeValue::N("2".to_owned()));
    }

    #[test]
    fn only_items_that_may_expire_have_an_expiry() {
        let key = ItemKey::request("1");
        let written = |item: Value| {
            let item = serde_json::from_value(item).unwrap();
            write(
                &key,
                &Stored {
                    revision: Revision::from_random(1),
                    item,
                },
            )
            .unwrap()
        };
        let request = json!({"type": "request", "id": "1", "scope": "global", "body": {"inline": "{}"}, "expires_at": 1_700_000_000});
        assert_eq!(
            written(request)[EXPIRES_AT],
            AttributeValue::N("1700000000".to_owned())
        );
        let upload = json!({"type": "upload", "key": "global/a", "etag": "e", "sequencer": "0", "size": 1, "state": "pending", "at": 5});
        assert_eq!(written(upload).get(EXPIRES_AT), None);
    }

    fn text() -> BoxedStrategy<String> {
        collection::vec(any::<char>(), 0..12)
            .prop_map(|characters| characters.into_iter().collect())
            .boxed()
    }

    fn number() -> BoxedStrategy<u64> {
        prop_oneof![
            any::<u64>(),
            Just(u64::MAX),
            Just(i64::MAX as u64 + 1),
            Just(0)
        ]
        .boxed()
    }

    fn module() -> BoxedStrategy<Value> {
        text()
            .prop_map(|module| json!({"scope": "acme", "source": "uploads", "module": module}))
            .boxed()
    }

    fn dif() -> BoxedStrategy<Value> {
        (text(), text())
            .prop_map(|(location, etag)| json!({"location": location, "etag": etag}))
            .boxed()
    }

    fn features() -> BoxedStrategy<Value> {
        (any::<[bool; 4]>(), text()).prop_map(|(has, vcs)| {
            json!({"has_debug_info": has[0], "has_unwind_info": has[1], "has_symbols": has[2], "has_sources": has[3], "srcsrv_vcs": vcs})
        }).boxed()
    }

    fn missing() -> BoxedStrategy<Value> {
        let cause = prop_oneof![
            Just(json!({"cause": "not_found"})),
            Just(json!({"cause": "crashed"})),
            number().prop_map(|limit| json!({"cause": "too_large", "limit": limit})),
        ];
        (cause, text())
            .prop_map(|(cause, detail)| json!({"cause": cause, "detail": detail}))
            .boxed()
    }

    fn ready() -> BoxedStrategy<Value> {
        let blob = (text(), number(), number(), option::of((number(), number())));
        (blob, features(), collection::vec(dif(), 0..3), number(), any::<(u32, u32, u8)>()).prop_map(
            |((path, bytes, checksum, index), features, made_from, derived_at, (version, converter, rank))| {
                let index = index.map(|(offset, length)| json!({"offset": offset, "length": length}));
                json!({
                    "version": version, "quality": "fallback", "rank": rank, "features": features, "arch": "x86_64",
                    "blob": {"path": path, "bytes": bytes, "checksum": checksum, "index": index},
                    "file_type": "sourcebundle", "made_from": made_from, "derived_at": derived_at, "converter": converter,
                })
            },
        ).boxed()
    }

    fn entry() -> BoxedStrategy<Value> {
        let placeholder = (missing(), number()).prop_map(|(mut missing, retry_at)| {
            missing["retry_at"] = json!(retry_at);
            missing["converter"] = json!(1);
            missing
        });
        let lease = (text(), number()).prop_map(|(holder, until)| json!({"holder": holder, "token": "00", "until": until, "dirty": "01"}));
        let candidate = (text(), text(), option::of(number())).prop_map(|(location, details, size)| {
            json!({"source": "uploads", "location": location, "size": size, "duration_ms": 3, "download": {"status": "no_perm", "details": details}})
        });
        (
            module(),
            (option::of(ready()), option::of(ready()), option::of(placeholder), option::of(lease)),
            collection::vec(dif(), 0..3),
            collection::vec(candidate, 0..3),
            (any::<u32>(), number(), number()),
        )
            .prop_map(|(module, (ready, older, missing, lease), considered, candidates, (attempts, at, last_used_at))| {
                json!({
                    "type": "entry", "module": module, "kind": "cficache", "ready": ready, "older": older, "missing": missing,
                    "lease": lease, "ask": {"id": "02", "lane": "refresh", "at": at}, "dirty": "03", "considered": considered,
                    "attempts": attempts, "releases": 1, "not_before": at, "suspect": {"blob": "x", "at": at}, "lost_at": at,
                    "last_used_at": last_used_at, "candidates": candidates,
                })
            }).boxed()
    }

    fn upload() -> BoxedStrategy<Value> {
        let object = features().prop_map(|features| {
            json!({
                "module": {"debug": "502fc0a5-1ec1-3e47-9998-684fa139dca7-1"}, "debug_id": "502fc0a5-1ec1-3e47-9998-684fa139dca7-1",
                "code_id": "f1c3bcc0", "file_type": "portablepdb", "arch": "arm64e", "features": features,
            })
        });
        let state = prop_oneof![
            Just(json!({"state": "pending"})),
            Just(json!({"state": "gone"})),
            text().prop_map(|reason| json!({"state": "ignored", "reason": reason})),
        ];
        (text(), text(), number(), collection::vec(object, 0..3), state, option::of(number())).prop_map(
            |(key, sequencer, size, objects, mut upload, expires_at)| {
                let fields = json!({
                    "type": "upload", "key": key, "etag": "e-3", "sequencer": sequencer, "size": size, "objects": objects,
                    "at": 1, "expires_at": expires_at,
                });
                upload.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                upload
            },
        ).boxed()
    }

    fn item() -> BoxedStrategy<Item> {
        let alias = module().prop_map(|target| json!({"type": "alias", "target": target}));
        let dif = (module(), dif(), number(), features(), option::of(missing())).prop_map(|(module, dif, size, features, refused)| {
            json!({"type": "dif", "module": module, "dif": dif, "sequencer": "00ff", "size": size, "file_type": "wasm_debug", "features": features, "refused": refused})
        });
        let body = prop_oneof![
            text().prop_map(|json| json!({"inline": json})),
            text().prop_map(|path| json!({"blob": path}))
        ];
        let request = (text(), body, number()).prop_map(|(id, body, expires_at)| {
            json!({"type": "request", "id": id, "scope": "acme", "body": body, "expires_at": expires_at})
        });
        let copy = (module(), self::dif(), number(), features()).prop_map(|(module, dif, number, features)| {
            let dif = json!({"module": module, "dif": dif, "sequencer": "", "size": number, "file_type": "pdb", "features": features});
            json!({"type": "copy", "dif": dif, "token": "t-7", "part_bytes": number, "bytes": number, "last_used_at": number})
        });
        let visit = (text(), number()).prop_map(|(id, until)| json!({"id": id, "until": until}));
        let health = (text(), number(), option::of(number()), collection::vec(visit, 0..3)).prop_map(
            |(source, number, open_until, permits)| {
                json!({
                    "type": "health", "source": source, "failures": 7, "rests_until": open_until, "detail": source,
                    "visits": permits, "expires_at": number,
                })
            },
        );
        let losses = number()
            .prop_map(|number| json!({"type": "losses", "since": number, "confirmed": number}));
        let presence = (module(), text()).prop_map(|(module, change)| {
            json!({"type": "presence", "module": module, "change": change, "code_ids": ["f1c3bcc0"]})
        });
        let objects = (upload(), text(), any::<u32>()).prop_map(|(upload, token, number)| {
            json!({
                "type": "objects", "key": upload["key"], "token": token, "number": number,
                "objects": upload["objects"], "at": 1,
            })
        });
        let large = (upload(), text(), any::<u32>()).prop_map(|(mut upload, token, number)| {
            upload["objects"] = json!([]);
            upload["object_set"] = json!({"token": token, "objects": number, "chunks": 3});
            upload["progress"] = json!("filed");
            upload["no_room"] = json!({"modules": 1, "of": number, "named": [token]});
            upload["reconciled"] = json!(number);
            upload
        });
        let overflow = (module(), collection::vec(text(), 0..3), text()).prop_map(
            |(module, locations, change)| {
                json!({"type": "overflow", "module": module, "locations": locations, "change": change})
            },
        );
        let small = prop_oneof![entry(), upload(), alias, dif, request, copy, health, losses];
        let json = prop_oneof![2 => small, 1 => prop_oneof![presence, objects, large, overflow]];
        json.prop_map(|json| serde_json::from_value(json).unwrap())
            .boxed()
    }

    proptest! {
        #[test]
        fn every_item_is_read_as_it_was_written(item in item(), bits in any::<u64>(), sort in text()) {
            let key = ItemKey { partition: "p".to_owned(), sort };
            let stored = Stored { revision: Revision::from_random(bits), item };
            let written = write(&key, &stored).unwrap();
            prop_assert_eq!(read(written).unwrap(), (key, stored));
        }
    }
}
