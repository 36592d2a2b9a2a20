//! What the fuzz targets call.

use reqwest::Url;

use super::sentry;

/// Takes bytes as Sentry's listing of the files of a module.
///
/// # Panics
///
/// More files are returned than are considered, or a location is not below the address of the
/// files.
pub fn listing(bytes: &[u8]) {
    let base = Url::parse("sentry://project_debug_file/").expect("it is a URL");
    let text = String::from_utf8_lossy(bytes);
    let Ok(files) = sentry::files(&base, &text) else {
        return;
    };
    assert!(files.len() <= sentry::MAX_FILES);
    for (_, location) in files {
        let id = location.as_str().strip_prefix(base.as_str());
        assert!(id.is_some_and(|id| !id.contains('/')), "{location}");
    }
}
