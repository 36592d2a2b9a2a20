//! The body of a request.

/// What a request sends.
#[derive(Debug)]
pub(crate) struct Body {
    /// The headers that describe it. They are signed with the request.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) bytes: Vec<u8>,
}

impl Body {
    pub(crate) fn json(bytes: Vec<u8>) -> Self {
        Self::of_type("application/json".to_owned(), bytes)
    }

    pub(crate) fn of_type(content_type: String, bytes: Vec<u8>) -> Self {
        Self {
            headers: vec![("content-type", content_type)],
            bytes,
        }
    }
}
