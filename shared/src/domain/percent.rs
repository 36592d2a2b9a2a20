//! Percent-encoding of texts in addresses.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// The characters that are encoded in a segment of a path or a value of a query: all but those that
/// RFC 3986, section 2.3 calls unreserved. debuginfod(8), "WEBAPI", and the signatures of S3 and of
/// Google Cloud Storage require exactly this.
pub(crate) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
