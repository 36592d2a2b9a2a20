//! Requests to a store that are signed in advance.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A `PUT` that a client may send to a store, for a limited time and without credentials.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SignedPut {
    /// The URL. Its query has the signature.
    pub url: String,
    /// The headers that are part of the signature, except for `Host`: they must be sent with these
    /// values.
    pub headers: BTreeMap<String, String>,
}

/// The signature is not shown.
impl fmt::Debug for SignedPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedPut").finish_non_exhaustive()
    }
}
