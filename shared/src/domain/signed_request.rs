//! Requests to a store that are signed in advance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A `PUT` that a client may send to a store, for a limited time and without credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedPut {
    /// The URL. Its query has the signature.
    pub url: String,
    /// The headers that are part of the signature: they must be sent with these values.
    pub headers: BTreeMap<String, String>,
}
