//! The keys that the service gives to uploaded files: `{scope}/{name}/{id}/{digest}`.
//!
//! The same file always gets the same key, so that it is sent once. A listing by prefix finds the
//! files of a scope, of a name, or of a build. A SymCache of Microsoft's protocol keeps its path,
//! which says what it is: `{scope}/{path}`.

use thiserror::Error;

use super::{DebugId, Location, MsSymCacheName, Scope};

/// The number of digits of a file's SHA-256 in its key.
const DIGEST_DIGITS: usize = 16;

/// The maximum length of a file's name, in bytes.
const NAME_BYTES: usize = 512;

/// The maximum length of an id, in bytes. A code id has at most twice 64 digits.
const ID_BYTES: usize = 128;

/// Why a file cannot have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidUploadKey {
    /// The name is not the name of a file.
    #[error(
        "the name must be that of a file: 1 to {NAME_BYTES} bytes without slashes or control characters"
    )]
    Name,
    /// The path of a SymCache does not say what it is.
    #[error(
        "a SymCache needs the path where Microsoft's tools store it: app.pdb/<GUID><age>/app.pdb-v3.1.0.symcache"
    )]
    SymCachePath,
    /// The id is not an id.
    #[error("the first of its `ids` must have 1 to {ID_BYTES} hexadecimal digits and dashes")]
    Id,
    /// The digest is not a SHA-256.
    #[error("the SHA-256 must have 64 hexadecimal digits")]
    Digest,
}

/// Returns the key of a file with this name that has an object with this id. `digest` is the
/// SHA-256 of the file in hex, before compression.
///
/// # Errors
///
/// [`InvalidUploadKey`] if a part of the key would be invalid.
pub fn upload_key(
    scope: &Scope,
    name: &str,
    id: &str,
    digest: &str,
) -> Result<Location, InvalidUploadKey> {
    let of_path = Location::new(format!("{scope}/{name}"));
    if MsSymCacheName::is_suggested_by(&of_path) {
        let has_dots = name.split('/').any(|segment| matches!(segment, "." | ".."));
        let is_named =
            name.split('/').count() == 3 && !has_dots && MsSymCacheName::of(&of_path).is_some();
        return if is_named && name.len() <= NAME_BYTES && !name.contains(char::is_control) {
            Ok(of_path)
        } else {
            Err(InvalidUploadKey::SymCachePath)
        };
    }
    let is_odd = |c: char| c == '/' || c.is_control();
    if name.len() > NAME_BYTES || matches!(name, "" | "." | "..") || name.contains(is_odd) {
        return Err(InvalidUploadKey::Name);
    }
    if !is_id(id) {
        return Err(InvalidUploadKey::Id);
    }
    let is_digest = digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit());
    let digits = digest.get(..DIGEST_DIGITS).filter(|_| is_digest);
    let digits = digits.ok_or(InvalidUploadKey::Digest)?.to_ascii_lowercase();
    let id = in_one_form(id);
    Ok(Location::new(format!("{scope}/{name}/{id}/{digits}")))
}

/// Returns an id in the form in which the service writes ids. Tools print the same id in upper or
/// lower case, and one with a UUID with or without dashes. 40 digits without dashes are a build id.
fn in_one_form(id: &str) -> String {
    let digits = id.bytes().filter(|byte| *byte != b'-').count();
    let has_uuid = matches!(digits, 32..40) || digits == 40 && id.len() > digits;
    let debug_id = id.parse::<DebugId>().ok().filter(|_| has_uuid);
    debug_id.map_or_else(|| id.to_ascii_lowercase(), |id| id.to_string())
}

/// Returns the name that a file had before it was uploaded: that in a key of [`upload_key`], and
/// otherwise the last segment of its location.
pub fn original_name(location: &Location) -> String {
    let name = name_in_key(location.as_str());
    name.map_or_else(|| location.file_name(), str::to_owned)
}

/// Returns the path by which a file tells what it is: its name in a key of [`upload_key`], whose
/// last segments say nothing about that, and otherwise its location.
pub fn original_path(location: &Location) -> &str {
    name_in_key(location.as_str()).unwrap_or(location.as_str())
}

fn name_in_key(key: &str) -> Option<&str> {
    let mut segments = key.rsplit('/');
    let (digest, id, name) = (segments.next()?, segments.next()?, segments.next()?);
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let has_digest = digest.len() == DIGEST_DIGITS && digest.bytes().all(is_hex);
    let has_scope = segments.next().is_some_and(|scope| !scope.is_empty());
    let is_key = has_digest && is_id(id) && has_scope && segments.next().is_none();
    is_key.then_some(name)
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (1..=ID_BYTES).contains(&text.len()) && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_key_has_the_scope_the_name_the_id_and_the_digest() {
        let acme: Scope = "acme".parse().unwrap();
        let key = upload_key(&acme, "my app.pdb", "c7d4c24f-1fb8-1", DIGEST).unwrap();
        assert_eq!(
            key.as_str(),
            "acme/my app.pdb/c7d4c24f-1fb8-1/0123456789abcdef"
        );
        assert_eq!(original_name(&key), "my app.pdb");
    }

    #[test]
    fn the_path_of_a_file_is_its_name_before_the_upload_or_its_location() {
        let name = "2D10C42F-591D-3265-B147-78BA0868073F.plist";
        let id = "2d10c42f-591d-3265-b147-78ba0868073f";
        let key = upload_key(&Scope::Global, name, id, DIGEST).unwrap();
        assert_eq!(original_path(&key), name);
        let of_symsorter = "global/2d/10c42f591d3265b14778ba0868073f/uuidmap";
        let location = Location::new(of_symsorter);
        assert_eq!(original_path(&location), of_symsorter);
    }

    #[test]
    fn an_id_has_the_same_key_in_every_form_in_which_tools_print_it() {
        let id_in_key = |id: &str| {
            let key = upload_key(&Scope::Global, "app", id, DIGEST).unwrap();
            assert_eq!(original_name(&key), "app");
            key.as_str().split('/').nth(2).unwrap().to_owned()
        };
        let build_id = "ac456ebc7f4825f4367208b89f51ad48a1b2c3d4";
        let digest_as_id = DIGEST.to_ascii_lowercase();
        let in_upper_case = build_id.to_ascii_uppercase();
        for (expected, others) in [
            (
                "3bf2e9f5-986f-a3e2-f8a7-e89d46811ee1",
                &[
                    "3BF2E9F5-986F-A3E2-F8A7-E89D46811EE1",
                    "3bf2e9f5986fa3e2f8a7e89d46811ee1",
                    "3BF2E9F5986FA3E2F8A7E89D46811EE10",
                ][..],
            ),
            (
                "3bf2e9f5-986f-a3e2-f8a7-e89d46811ee1-1a",
                &[
                    "3BF2E9F5-986F-A3E2-F8A7-E89D46811EE1-1A",
                    "3BF2E9F5986FA3E2F8A7E89D46811EE11a",
                ],
            ),
            (build_id, &[&*in_upper_case]),
            (&*digest_as_id, &[DIGEST]),
            ("5ab380779000", &["5AB380779000"]),
        ] {
            assert_eq!(id_in_key(expected), expected);
            for &other in others {
                assert_eq!(id_in_key(other), expected, "{other}");
            }
        }
    }

    #[test]
    fn the_path_of_a_symcache_is_kept_if_it_names_it() {
        let path = "app.pdb/0123456789abcdef0123456789abcdef1/app.pdb-v3.1.0.symcache";
        let key = |name| upload_key(&Scope::Global, name, "", "");
        assert_eq!(key(path).unwrap().as_str(), format!("global/{path}"));
        let with_dots = "../0123456789abcdef0123456789abcdef1/..-v3.1.0.symcache";
        for name in [
            "app.symcache",
            &format!("../{path}"),
            &path[8..],
            with_dots,
            &with_dots.replace("..", "."),
        ] {
            assert_eq!(key(name), Err(InvalidUploadKey::SymCachePath), "{name}");
        }
    }

    #[test]
    fn a_part_that_would_make_another_key_is_refused() {
        use InvalidUploadKey::{Digest, Id, Name};
        let long = "a".repeat(NAME_BYTES + 1);
        for (name, id, digest, reason) in [
            ("", "ab", DIGEST, Name),
            ("..", "ab", DIGEST, Name),
            ("a/b", "ab", DIGEST, Name),
            ("a\nb", "ab", DIGEST, Name),
            (&*long, "ab", DIGEST, Name),
            ("a", "", DIGEST, Id),
            ("a", "a/b", DIGEST, Id),
            ("a", "xy", DIGEST, Id),
            ("a", "ab", "", Digest),
            ("a", "ab", &DIGEST[1..], Digest),
            ("a", "ab", &"g".repeat(64), Digest),
        ] {
            let key = upload_key(&Scope::Global, name, id, digest);
            assert_eq!(key, Err(reason), "{name:?} {id:?} {digest:?}");
        }
    }

    #[test]
    fn keys_of_users_name_their_file_last() {
        for key in [
            "global/a/0123456789abcdef",
            "global/ab/cdef0123456789abcdef0123456789abcdef0123/debuginfo",
            "global/x/a/ab/0123456789abcdef",
            "/a/ab/0123456789abcdef",
            "global/a/ab/0123456789ABCDEF",
        ] {
            let last = key.rsplit('/').next().unwrap();
            assert_eq!(original_name(&Location::new(key)), last, "{key}");
        }
    }
}
