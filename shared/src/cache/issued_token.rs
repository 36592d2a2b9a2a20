//! Access tokens that were issued: their hashes, and what they grant.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::domain::{GrantedScope, Grants, Right, Timestamp};

/// An access token that was issued. The token itself is stored nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedToken {
    /// The SHA-256 of the token in hex.
    pub id: String,
    /// What the operator calls it.
    pub name: String,
    /// The scope that it is for.
    pub scope: GrantedScope,
    /// What its holder may do.
    pub rights: BTreeSet<Right>,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it ceases to be valid.
    pub valid_until: Timestamp,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

impl IssuedToken {
    /// Returns whether the token is valid.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && now < self.valid_until
    }

    /// Returns what its holder may do.
    pub fn grants(&self) -> Grants {
        Grants {
            scopes: [self.scope.clone()].into(),
            rights: self.rights.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_until_it_expires_or_is_revoked() {
        let at = Timestamp::from_secs;
        let token = IssuedToken {
            id: "00".to_owned(),
            name: "ci".to_owned(),
            scope: "acme".to_owned().into(),
            rights: [Right::Upload].into(),
            issued_at: at(10),
            valid_until: at(20),
            revoked_at: None,
            expires_at: at(20),
        };
        assert!(token.is_valid(at(19)) && !token.is_valid(at(20)));
        let revoked = IssuedToken {
            revoked_at: Some(at(11)),
            ..token.clone()
        };
        assert!(!revoked.is_valid(at(12)));
        let json = serde_json::to_value(&token).unwrap();
        assert_eq!(json["scope"], "acme");
        assert_eq!(json["rights"][0], "upload");
        let read: IssuedToken = serde_json::from_value(json).unwrap();
        assert_eq!(read, token);
    }
}
