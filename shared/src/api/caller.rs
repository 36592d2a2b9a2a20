//! Callers: who sends requests.

use sha2::{Digest, Sha256};

/// The number of hex digits that name a caller in the log.
const HASH_DIGITS: usize = 16;

/// Returns a caller's name in the log: the beginning of a hash of its identity. The same caller has
/// the same name in all lines, and who may only read the log does not learn who it is.
pub fn caller_hash(identity: &str) -> String {
    let mut hash = format!("{:x}", Sha256::digest(identity));
    hash.truncate(HASH_DIGITS);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_a_name_of_its_own_that_does_not_contain_its_identity() {
        let [one, other] = ["arn:aws:iam::1:user/a", "arn:aws:iam::1:user/b"].map(caller_hash);
        assert_eq!(one, caller_hash("arn:aws:iam::1:user/a"));
        assert_ne!(one, other);
        assert_eq!(one.len(), HASH_DIGITS);
        assert!(one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    }
}
