//! Listings in byte order by range scans of an index. A page reads only the rows that it shows; a
//! group of keys costs one seek.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::{Transaction, params};
use s3s::{S3Result, s3_error};

use super::failure::Failure;
use super::objects::{COLUMNS, Object, require_bucket};

/// The maximum number of entries on a page.
pub(crate) const PAGE: usize = 1000;

/// The number of rows per read if keys may fall into groups.
const GROUPED_BATCH: usize = 16;

/// The parameters of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// Only keys with this prefix are listed.
    pub(crate) prefix: String,
    /// Keys that have the same text between the prefix and this delimiter form one group. Empty: no
    /// groups.
    pub(crate) delimiter: String,
    /// The first key that may be shown, in byte order.
    pub(crate) from: String,
    /// The maximum number of entries.
    pub(crate) max: usize,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing<T> {
    /// The entries, in order.
    pub(crate) entries: Vec<T>,
    /// The groups, in order.
    pub(crate) groups: Vec<String>,
    /// Where the next page begins, if there is one.
    pub(crate) next: Option<String>,
}

impl<T> Listing<T> {
    fn empty() -> Self {
        Self {
            entries: Vec::new(),
            groups: Vec::new(),
            next: None,
        }
    }

    fn len(&self) -> usize {
        self.entries.len() + self.groups.len()
    }
}

/// Lists the objects of a bucket.
pub(crate) fn objects(
    transaction: &Transaction<'_>,
    bucket: &str,
    query: &Query,
) -> Result<Listing<Object>, Failure> {
    require_bucket(transaction, bucket)?;
    let mut select = transaction.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM objects
         WHERE bucket = ?1 AND key >= ?2 AND (?3 IS NULL OR key < ?3) ORDER BY key LIMIT ?4"
    ))?;
    scan(
        query,
        |object: &Object| &object.key,
        |from, until, limit| {
            let rows = select.query_map(params![bucket, from, until, limit], Object::read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        },
    )
}

/// Scans an index in key order. `fetch` returns entries from one key up to, but excluding, another,
/// with a limit on their number.
pub(crate) fn scan<T>(
    query: &Query,
    key: impl Fn(&T) -> &String,
    mut fetch: impl FnMut(&str, Option<&str>, usize) -> Result<Vec<T>, Failure>,
) -> Result<Listing<T>, Failure> {
    let mut listing = Listing::empty();
    if query.max == 0 {
        return Ok(listing);
    }
    let until = successor(&query.prefix);
    let mut from = query.from.clone().max(query.prefix.clone());
    loop {
        // One entry more than fits tells whether there is a next page. With groups, rows after the
        // first key of a group are discarded, so the batches are small.
        let room = query.max - listing.len() + 1;
        let batch = if query.delimiter.is_empty() {
            room
        } else {
            room.min(GROUPED_BATCH)
        };
        let found = fetch(&from, until.as_deref(), batch)?;
        let exhausted = found.len() < batch;
        let mut skipped = false;
        for entry in found {
            let name = key(&entry);
            let group = group_of(name, query);
            if listing.len() == query.max {
                listing.next = Some(group.unwrap_or_else(|| name.clone()).max(from));
                return Ok(listing);
            }
            if let Some(group) = group {
                let after = successor(&group);
                listing.groups.push(group);
                match after {
                    Some(after) => from = after,
                    None => return Ok(listing),
                }
                // The rest of this batch may belong to the same group: the next read starts after
                // the group.
                skipped = true;
                break;
            }
            from = following(name);
            listing.entries.push(entry);
        }
        if exhausted && !skipped {
            return Ok(listing);
        }
    }
}

/// Returns the group of a key: the key up to and including the first delimiter after the prefix.
fn group_of(key: &str, query: &Query) -> Option<String> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(query.prefix.as_str())?;
    let at = rest.find(query.delimiter.as_str())?;
    Some(key[..query.prefix.len() + at + query.delimiter.len()].to_owned())
}

/// Returns the smallest text greater than `key`.
pub(crate) fn following(key: &str) -> String {
    format!("{key}\0")
}

/// Returns the smallest text greater than every text with this prefix; `None` if there is none or
/// the prefix is empty.
pub(crate) fn successor(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        // UTF-8 bytes sort in the order of code points; surrogates are not characters.
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            char::MAX => None,
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

/// Returns the opaque continuation token for the beginning of a page.
pub(crate) fn token(from: &str) -> String {
    URL_SAFE_NO_PAD.encode(from)
}

/// Returns the beginning of the page that a continuation token encodes.
pub(crate) fn read_token(token: &str) -> S3Result<String> {
    URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "the continuation token provided is incorrect"
            )
        })
}

/// Returns the number of entries for a page.
pub(crate) fn page_size(wanted: Option<i32>) -> S3Result<usize> {
    match wanted {
        None => Ok(PAGE),
        Some(wanted) => usize::try_from(wanted)
            .map(|wanted| wanted.min(PAGE))
            .map_err(|_| s3_error!(InvalidArgument, "max-keys must not be negative")),
    }
}

/// Encodes a key for an XML document that was requested with `encoding-type=url`.
pub(crate) fn url_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all pages of `keys`, as entries and groups, from scans of a sorted list.
    fn pages(keys: &[&str], prefix: &str, delimiter: &str, max: usize) -> Vec<Vec<String>> {
        let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        keys.sort();
        let mut query = Query {
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            from: String::new(),
            max,
        };
        let mut pages = Vec::new();
        loop {
            let listing = scan(
                &query,
                |key: &String| key,
                |from, until, limit| {
                    Ok(keys
                        .iter()
                        .filter(|key| {
                            key.as_str() >= from && until.is_none_or(|until| key.as_str() < until)
                        })
                        .take(limit)
                        .cloned()
                        .collect())
                },
            )
            .unwrap();
            let mut page = listing.entries.clone();
            page.extend(listing.groups.iter().map(|group| format!("{group}*")));
            page.sort();
            pages.push(page);
            match listing.next {
                Some(next) => query.from = next,
                None => return pages,
            }
        }
    }

    #[test]
    fn a_group_counts_once_and_is_not_repeated_on_the_next_page() {
        let keys = ["a", "b/1", "b/2", "b/3", "c", "d/1", "e"];
        assert_eq!(
            pages(&keys, "", "/", 2),
            [vec!["a", "b/*"], vec!["c", "d/*"], vec!["e"]]
        );
        assert_eq!(
            pages(&keys, "", "/", 100),
            [vec!["a", "b/*", "c", "d/*", "e"]]
        );
        assert_eq!(
            pages(&keys, "b/", "/", 2),
            [vec!["b/1", "b/2"], vec!["b/3"]]
        );
        assert_eq!(pages(&keys, "", "", 7).len(), 1);
    }

    #[test]
    fn paging_by_any_size_shows_every_key_once_in_byte_order() {
        let keys = [
            "",
            "a",
            "a/",
            "a/b",
            "a0",
            "ab",
            "a\u{7f}",
            "ä",
            "\u{d7ff}x",
            "\u{e000}",
            "\u{10ffff}",
        ];
        let mut sorted: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        sorted.sort();
        for max in 1..=keys.len() + 1 {
            let all: Vec<String> = pages(&keys, "", "", max).into_iter().flatten().collect();
            assert_eq!(all, sorted, "by {max}");
        }
    }

    #[test]
    fn the_successor_is_above_all_keys_with_the_prefix_and_below_the_others() {
        assert_eq!(successor("a"), Some("b".to_owned()));
        assert_eq!(successor("a\u{d7ff}"), Some("a\u{e000}".to_owned()));
        assert_eq!(successor("a\u{10ffff}"), Some("b".to_owned()));
        assert_eq!(successor("\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }
}
