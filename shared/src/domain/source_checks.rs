//! Checks of the parts of a source's definition: its id, its address, its bucket, its headers.

use std::collections::BTreeMap;

use url::Url;

use super::SOURCE_LINK_ID;
use super::server::{HttpSource, InvalidSource, shapes_the_connection};

/// Returns the base of the locations in a bucket.
pub(super) fn bucket_url(
    scheme: &str,
    id: &str,
    bucket: &str,
    prefix: &str,
) -> Result<Url, InvalidSource> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let invalid = || InvalidSource::Bucket {
        id: id.to_owned(),
        problem: "its bucket must be the name of a bucket".to_owned(),
    };
    if bucket.is_empty() || bucket.len() > 255 || !bucket.chars().all(is_name) {
        return Err(invalid());
    }
    let mut url = Url::parse(&format!("{scheme}://{bucket}/")).map_err(|_| invalid())?;
    let segments = prefix.split('/').filter(|segment| !segment.is_empty());
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    Ok(url)
}

pub(super) fn check_id(id: &str) -> Result<(), InvalidSource> {
    let is_sound = !id.is_empty()
        && id.len() <= HttpSource::MAX_ID_BYTES
        && !id.chars().any(char::is_control)
        && !matches!(id, "uploads" | SOURCE_LINK_ID);
    if is_sound {
        Ok(())
    } else {
        let shown = id.chars().take(HttpSource::MAX_ID_BYTES).collect();
        Err(InvalidSource::Id(shown))
    }
}

/// Parses the address of a server.
pub(super) fn base_url(id: &str, text: &str) -> Result<Url, InvalidSource> {
    let invalid = |problem: &str| InvalidSource::Address {
        id: id.to_owned(),
        problem: problem.to_owned(),
    };
    let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(invalid(
            "it must begin with http:// or https:// and name a host",
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("it contains credentials; send them in `headers`"));
    }
    Ok(url)
}

pub(super) fn without_query(mut url: Url) -> Url {
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Checks the headers of a source with this id.
///
/// # Errors
///
/// [`InvalidSource::Header`] or [`InvalidSource::ConnectionHeader`] names the first header that
/// cannot be sent. No error contains a value.
pub fn check_headers(id: &str, headers: &BTreeMap<String, String>) -> Result<(), InvalidSource> {
    let is_unsound = |(name, value): &(&String, &String)| {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let is_sound = !name.is_empty()
            && name.chars().all(token)
            && !value.contains(|c: char| c.is_control());
        !is_sound
    };
    let (id, mut names) = (id.to_owned(), headers.keys());
    if let Some((name, _)) = headers.iter().find(is_unsound) {
        let name = name.clone();
        return Err(InvalidSource::Header { name, id });
    }
    match names.find(|name| shapes_the_connection(name)) {
        Some(name) => Err(InvalidSource::ConnectionHeader {
            name: name.clone(),
            id,
        }),
        None => Ok(()),
    }
}
