//! The number of the code that derives.

use serde::{Deserialize, Serialize};

/// The number of the code that derives. Failures and messages are compared by it.
///
/// It orders combined releases of this code and of `symbolic`. It is never a commit or a
/// deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Converter(pub u32);
