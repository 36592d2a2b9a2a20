//! The form that a crash file is sent in: its parts, compressed or not.

use std::borrow::Cow;
use std::io::Read;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::rewrite::RewriteRules;
use crate::api::symbolicator::{JsonObject, Options, RequestError, Scraping, Sources};
use crate::domain::ResponseFormat;

/// The maximum size of each part besides the file, in bytes.
pub const PART_BYTES: usize = 1024 * 1024;

/// The maximum size of everything in a form besides the file, in bytes.
pub const PARTS_BYTES: usize = 8 * PART_BYTES;

/// The largest window of a zstd stream: 32 MiB. The decoder allocates it in addition to the file.
const ZSTD_WINDOW_LOG: u32 = 25;

/// The parts of a form that say how the file is symbolicated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrashFields {
    /// The platform of the process. It has no effect.
    pub platform: Option<String>,
    /// The sources to search.
    pub sources: Sources,
    /// The options of the response.
    pub options: Options,
    /// Names under which the first module is looked up.
    #[serde(default, skip_serializing_if = "RewriteRules::is_empty")]
    pub rewrite_first_module: RewriteRules,
    /// Whether links to source files may be followed.
    #[serde(default)]
    pub scraping: Scraping,
    /// The schema of the answer. It is a parameter of the query, not a part.
    #[serde(default, skip_serializing_if = "ResponseFormat::is_default")]
    pub format: ResponseFormat,
}

impl CrashFields {
    /// The names of the parts.
    pub const NAMES: &'static [&'static str] = &[
        "platform",
        "sources",
        "options",
        "rewrite_first_module",
        "scraping",
    ];

    /// Checks the limits of all parts.
    ///
    /// # Errors
    ///
    /// [`RequestError::Sources`] and [`RequestError::Part`].
    pub fn checked(self) -> Result<Self, RequestError> {
        self.sources.check_limits()?;
        self.rewrite_first_module.check()?;
        self.scraping.check_limits()?;
        Ok(self)
    }

    /// Sets a part.
    ///
    /// # Errors
    ///
    /// [`RequestError::Part`] if it is not the JSON that it should be, except the platform, and
    /// [`RequestError::Sources`] if the sources exceed their limits.
    pub fn set(&mut self, name: &str, json: &[u8]) -> Result<(), RequestError> {
        match name {
            "platform" => self.platform = platform(json),
            "options" => {
                let options: Option<JsonObject<Options>> = parsed(name, json)?;
                self.options = options.map(|options| options.0).unwrap_or_default();
            }
            "scraping" => {
                let scraping: Option<JsonObject<Scraping>> = parsed(name, json)?;
                self.scraping = scraping.map(|scraping| scraping.0).unwrap_or_default();
                self.scraping.check_limits()?;
            }
            "sources" => {
                self.sources = parsed(name, json)?;
                self.sources.check_limits()?;
            }
            "rewrite_first_module" => {
                let rules: Option<RewriteRules> = parsed(name, json)?;
                self.rewrite_first_module = rules.unwrap_or_default();
                self.rewrite_first_module.check()?;
            }
            // Other parts are ignored, as unknown fields of requests are.
            _ => {}
        }
        Ok(())
    }
}

/// Returns the platform: JSON, or text without quotes, as Electron's crash reporter sends it.
fn platform(part: &[u8]) -> Option<String> {
    serde_json::from_slice(part)
        .unwrap_or_else(|_| Some(String::from_utf8_lossy(part).into_owned()))
}

fn parsed<T: DeserializeOwned>(name: &str, json: &[u8]) -> Result<T, RequestError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let error = |path: &str, cause: String| RequestError::Part {
        name: name.to_owned(),
        // What has no name, such as a key that cannot be read, is `?` in the path.
        cause: match path.strip_suffix(".?").unwrap_or(path) {
            "" | "." | "?" => cause,
            path => format!("{path}: {cause}"),
        },
    };
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|cause| error(&cause.path().to_string(), cause.inner().to_string()))?;
    let end = deserializer.end();
    end.map_err(|cause| error("", cause.to_string()))?;
    Ok(value)
}

/// Returns whether bytes begin like a gzip or zstd stream.
pub fn is_compressed(bytes: &[u8]) -> bool {
    matches!(bytes, [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..])
}

/// Returns bytes decompressed, if they begin like a gzip or zstd stream, and otherwise as they are.
///
/// # Errors
///
/// [`RequestError::TooLong`] if there are more than `limit` bytes, compressed or not, and
/// [`RequestError::Broken`] if the stream is broken.
pub fn decompressed<'a>(
    what: &'static str,
    bytes: &'a [u8],
    limit: usize,
) -> Result<Cow<'a, [u8]>, RequestError> {
    let broken = |cause: std::io::Error| RequestError::Broken {
        what,
        cause: cause.to_string(),
    };
    let mut from: Box<dyn Read + 'a> = match bytes {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::with_buffer(bytes).map_err(broken)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(broken)?;
            Box::new(decoder)
        }
        _ if bytes.len() > limit => return Err(RequestError::TooLong { what, limit }),
        _ => return Ok(Cow::Borrowed(bytes)),
    };
    let mut out = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    from.by_ref()
        .take(most)
        .read_to_end(&mut out)
        .map_err(broken)?;
    if out.len() > limit {
        Err(RequestError::TooLong { what, limit })
    } else {
        Ok(Cow::Owned(out))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::api::symbolicator::FrameOrder;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn files_are_decompressed_up_to_the_limit() {
        let file = vec![7; 1000];
        for sent in [
            file.clone(),
            gzip(&file),
            zstd::encode_all(&*file, 1).unwrap(),
        ] {
            assert_eq!(*decompressed("file", &sent, 1000).unwrap(), *file);
            let error = decompressed("file", &sent, 999).unwrap_err();
            assert_eq!(error.status(), 413);
            assert!(error.to_string().contains("999"), "{error}");
        }
    }

    #[test]
    fn a_decompression_bomb_ends_at_the_limit() {
        let zeros = vec![0; 64 << 20];
        for bomb in [gzip(&zeros), zstd::encode_all(&*zeros, 1).unwrap()] {
            assert!(bomb.len() < 1 << 20);
            let error = decompressed("file", &bomb, 1 << 20).unwrap_err();
            assert_eq!(error.status(), 413);
        }
    }

    #[test]
    fn a_broken_stream_is_a_bad_request() {
        for bytes in [
            &[0x1f, 0x8b, 0][..],
            &[0x28, 0xb5, 0x2f, 0xfd, 0xff],
            &gzip(&[7; 100])[..20],
        ] {
            let error = decompressed("the body", bytes, 1000).unwrap_err();
            assert_eq!(error.status(), 400, "{error}");
            let text = error.to_string();
            assert!(
                text.starts_with("the body cannot be decompressed: "),
                "{text}"
            );
        }
    }

    #[test]
    fn a_platform_that_is_not_json_is_its_text() {
        let mut fields = CrashFields::default();
        for (part, expected) in [
            (&b"win32"[..], "win32"),
            (b"\"native\" 1", "\"native\" 1"),
            (b"5", "5"),
            (b"\xff", "\u{fffd}"),
        ] {
            fields.set("platform", part).unwrap();
            assert_eq!(fields.platform.as_deref(), Some(expected));
        }
    }

    #[test]
    fn parts_are_json() {
        let mut fields = CrashFields::default();
        assert_eq!(fields.sources, Sources::Configured);
        let options = br#"{"frame_order": "caller_first", "dif_candidates": true, "other": 1}"#;
        fields.set("options", options).unwrap();
        fields.set("sources", br#"["uploads"]"#).unwrap();
        fields.set("platform", br#""native""#).unwrap();
        fields.set("unknown", b"{").unwrap();
        assert_eq!(fields.options.frame_order, FrameOrder::CallerFirst);
        assert!(fields.options.dif_candidates);
        assert_eq!(fields.platform.as_deref(), Some("native"));
        fields.set("platform", b"null").unwrap();
        assert_eq!(fields.platform, None);
        assert!(matches!(fields.sources, Sources::Listed(_)), "{fields:?}");
        fields.set("sources", b"null").unwrap();
        assert_eq!(fields.sources, Sources::Configured);

        for (name, json) in [
            ("sources", &b"{}"[..]),
            ("sources", b""),
            ("options", b"\xff"),
            ("options", br#"{"frame_order": 7}"#),
        ] {
            let error = fields.set(name, json).unwrap_err();
            assert_eq!(error.status(), 400, "{name} {json:?}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = fields.set("options", b"{frame_order: 1}").unwrap_err();
        let text = error.to_string();
        let expected = "the part options is invalid: key must be a string";
        assert!(text.starts_with(expected), "{text}");
    }
}
