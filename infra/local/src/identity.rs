//! Who is who on this machine: the account, the region, and the two key pairs that the endpoints accept.

/// The account that owns everything here, as it stands in ARNs and queue URLs.
pub const ACCOUNT: &str = "000000000000";

/// The region that everything here says it is in. Requests signed for another region are accepted too.
pub const REGION: &str = "us-east-1";

/// What the function processes sign with: their traffic is counted as the product's own.
pub const FUNCTION: KeyPair = KeyPair {
    access_key_id: "function",
    secret_access_key: "function",
};

/// What everybody else signs with: `AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local aws --endpoint-url …`.
pub const LOCAL: KeyPair = KeyPair {
    access_key_id: "local",
    secret_access_key: "local",
};

/// A static pair of keys. Not a secret: it opens a loopback port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// `AWS_ACCESS_KEY_ID`.
    pub access_key_id: &'static str,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret_access_key: &'static str,
}
