//! Entry points for fuzzing. Each takes arbitrary bytes as the input of a caller, and panics if
//! they could do harm. The fuzz targets are in `tests/fuzz`.

use super::any::AnyRequest;
use super::attachment::{AttachmentRequest, StorageUrl};
use super::form::{CrashFields, decompressed};
use super::rewrite::{RewriteRule, RewriteRules};

/// The limit of a decompressed part, so that each input is fast.
const PART_BYTES: usize = 1 << 20;

/// Takes lines as the parts of a form, each with its name before a colon, and the whole as the body
/// of each route that takes JSON, and as a compressed file.
pub fn form(bytes: &[u8]) {
    let mut fields = CrashFields::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let (Ok(name), Some(json)) = (std::str::from_utf8(name), parts.next()) else {
            continue;
        };
        let before = fields.clone();
        match fields.set(name, json) {
            Ok(()) => assert!(fields.clone().checked().is_ok(), "{name} has no limits"),
            Err(error) => {
                assert!((400..500).contains(&error.status()), "{error}");
                fields = before;
            }
        }
    }
    if let Ok(file) = decompressed("file", bytes, PART_BYTES) {
        assert!(file.len() <= PART_BYTES);
    }
    let _ = AnyRequest::parse(bytes);
    let _ = AttachmentRequest::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let hosts = ["files.example.com".to_owned()];
        if let Ok(StorageUrl::Remote(url)) = StorageUrl::parse(text, &hosts) {
            assert_eq!(url.host_str(), Some("files.example.com"));
            assert_eq!(url.port(), None, "another port is another host");
        }
    }
}

/// Takes lines as rules, each with a tab between its parts, and the last line as a name.
pub fn rewrite(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (rules, name) = text.rsplit_once('\n').unwrap_or(("", &text));
    let rules = rules.lines().filter_map(|line| line.split_once('\t'));
    let rules = rules.map(|(from, to)| RewriteRule {
        from: from.to_owned(),
        to: to.to_owned(),
    });
    let rules = RewriteRules(rules.collect());
    if rules.check().is_ok() {
        let renamed = rules.apply(name);
        assert!(renamed.is_none_or(|renamed| renamed.len() <= 4096));
    }
}
