//! The addresses at which files of buckets, of Sentry, and behind links are requested.
//!
//! Only the address is computed or signed here. Every byte is fetched by the one HTTP client, with
//! its checks of addresses.
//!
//! Sources: Amazon S3 API Reference, "Authenticating Requests: Using Query Parameters (AWS
//! Signature Version 4)"; Amazon S3 User Guide, "Virtual hosting of general purpose buckets";
//! Google Cloud Storage, "V4 signing process with your own program".

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PercentEncodingMode, SignableBody, SignableRequest, SignatureLocation, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use reqwest::Url;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use sha2::{Digest, Sha256};
use time::UtcDateTime;
use time::macros::format_description;

use crate::adapters::regions::domain_of;
use crate::domain::{Access, GcsCredentials, HttpSource, RESERVED, S3Access, S3Keys};

/// How long a signed address is valid. A download that began in time may take longer.
const VALID_FOR: Duration = Duration::from_secs(15 * 60);

/// The address of Google Cloud Storage.
const GCS: &str = "https://storage.googleapis.com/";

/// An address, and what is shown of it.
pub(super) struct FileAddress {
    /// The address that is requested; it may contain credentials.
    pub(super) sent: Url,
    /// The address without its query.
    pub(super) shown: Url,
}

/// Returns the scheme, host and port that requests to a source are sent to.
pub(super) fn own(source: &HttpSource) -> Url {
    match &source.access {
        Access::Http | Access::Links { .. } => source.url.clone(),
        Access::S3(access) => bucket_address(access, &source.url),
        Access::Gcs(_) => Url::parse(GCS).expect("it is a URL"),
        Access::Sentry { api } => api.clone(),
    }
}

/// Returns the address at which the file at a location of a source is requested. Requests to a
/// bucket of S3 are signed with `keys`, if there are any. `now` is the time since 1970. The error
/// says why it cannot be signed.
pub(super) fn of(
    source: &HttpSource,
    location: &Url,
    keys: Option<&S3Keys>,
    now: Duration,
) -> Result<FileAddress, String> {
    let (shown, sent) = match &source.access {
        Access::Http => (location.clone(), source.with_query(location)),
        Access::Links { .. } => {
            let mut shown = location.clone();
            shown.set_query(None);
            (shown, location.clone())
        }
        Access::S3(access) => {
            let shown = with_key(bucket_address(access, &source.url), location);
            let sent = match keys {
                Some(keys) => sign_for_s3(&access.region, keys, &shown, now)?,
                None => shown.clone(),
            };
            (shown, sent)
        }
        Access::Gcs(credentials) => {
            let bucket = location.host_str().unwrap_or_default();
            let base = format!("{GCS}{bucket}");
            let base = Url::parse(&base).map_err(|error| error.to_string())?;
            let shown = with_key(base, location);
            let sent = match credentials {
                GcsCredentials::Token(_) => shown.clone(),
                GcsCredentials::ServiceAccount { email, private_key } => {
                    sign_for_gcs(email, private_key, &shown, now)?
                }
            };
            (shown, sent)
        }
        Access::Sentry { api } => {
            let id = location.path().trim_matches('/');
            let id = percent_decode_str(id).decode_utf8_lossy().into_owned();
            let mut sent = source.with_query(api);
            sent.query_pairs_mut().append_pair("id", &id);
            (api.clone(), sent)
        }
    };
    Ok(FileAddress { sent, shown })
}

/// Returns the address of a bucket. Without an endpoint, the bucket is part of the host name,
/// unless it contains a dot: the certificate does not cover such names.
fn bucket_address(access: &S3Access, locations: &Url) -> Url {
    let bucket = locations.host_str().unwrap_or_default();
    let region = &access.region;
    let domain = domain_of(region);
    let address = match &access.endpoint {
        Some(endpoint) => {
            let base = endpoint.as_str().trim_end_matches('/');
            format!("{base}/{bucket}")
        }
        None if bucket.contains('.') => format!("https://s3.{region}.{domain}/{bucket}"),
        None => format!("https://{bucket}.s3.{region}.{domain}/"),
    };
    Url::parse(&address).expect("the names of buckets and regions are checked")
}

/// Appends the key of a location to the address of its bucket.
fn with_key(mut bucket: Url, location: &Url) -> Url {
    let key = percent_decode_str(location.path().trim_start_matches('/'));
    let key = key.decode_utf8_lossy();
    let segments: Vec<String> = key
        .split('/')
        .map(|segment| utf8_percent_encode(segment, RESERVED).to_string())
        .collect();
    let base = bucket.path().trim_end_matches('/').to_owned();
    bucket.set_path(&format!("{base}/{}", segments.join("/")));
    bucket
}

fn sign_for_s3(region: &str, keys: &S3Keys, address: &Url, now: Duration) -> Result<Url, String> {
    let S3Keys {
        access_key,
        secret_key,
        session_token,
    } = keys;
    let failed = |error: &dyn std::fmt::Display| format!("the request cannot be signed: {error}");
    let token = session_token.clone();
    let identity = Credentials::new(access_key, secret_key, token, None, "source").into();
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(VALID_FOR);
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("s3")
        .time(UNIX_EPOCH + now)
        .settings(settings)
        .build()
        .map_err(|error| failed(&error))?
        .into();
    let body = SignableBody::UnsignedPayload;
    let request = SignableRequest::new("GET", address.as_str(), std::iter::empty(), body);
    let signed = request
        .and_then(|request| sign(request, &parameters))
        .map_err(|error| failed(&error))?;
    let (instructions, _) = signed.into_parts();
    Ok(with_parameters(
        address,
        instructions
            .params()
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string())),
    ))
}

/// Returns an address with parameters, encoded as signatures require it.
fn with_parameters(address: &Url, parameters: impl Iterator<Item = (String, String)>) -> Url {
    let pairs: Vec<String> = parameters
        .map(|(name, value)| {
            let value = utf8_percent_encode(&value, RESERVED);
            format!("{name}={value}")
        })
        .collect();
    let mut url = address.clone();
    url.set_query(Some(&pairs.join("&")));
    url
}

fn sign_for_gcs(
    email: &str,
    private_key: &str,
    address: &Url,
    now: Duration,
) -> Result<Url, String> {
    let key = rsa_key(private_key)?;
    let (parameters, text) = gcs_request(email, address, now, VALID_FOR)?;
    let mut signature = vec![0; key.public().modulus_len()];
    let random = SystemRandom::new();
    key.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature)
        .map_err(|_| "the private key cannot sign")?;
    let signed = [("X-Goog-Signature".to_owned(), hex(&signature))];
    Ok(with_parameters(
        address,
        parameters.into_iter().chain(signed),
    ))
}

/// Returns the parameters of a request for an address, and the text to sign.
fn gcs_request(
    email: &str,
    address: &Url,
    now: Duration,
    valid_for: Duration,
) -> Result<(Vec<(String, String)>, String), String> {
    let time = i64::try_from(now.as_secs()).ok();
    let time = time.and_then(|seconds| UtcDateTime::from_unix_timestamp(seconds).ok());
    let time = time.ok_or("the clock is wrong")?;
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let time = time.format(format).map_err(|error| error.to_string())?;
    let date = time.split('T').next().unwrap_or_default();
    let scope = format!("{date}/auto/storage/goog4_request");
    let parameters = [
        ("X-Goog-Algorithm", "GOOG4-RSA-SHA256".to_owned()),
        ("X-Goog-Credential", format!("{email}/{scope}")),
        ("X-Goog-Date", time.clone()),
        ("X-Goog-Expires", valid_for.as_secs().to_string()),
        ("X-Goog-SignedHeaders", "host".to_owned()),
    ];
    let parameters: Vec<_> = parameters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let unsigned = with_parameters(address, parameters.iter().cloned());
    let canonical = format!(
        "GET\n{}\n{}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD",
        address.path(),
        unsigned.query().unwrap_or_default(),
        address.host_str().unwrap_or_default(),
    );
    let hash = hex(&Sha256::digest(canonical));
    let text = format!("GOOG4-RSA-SHA256\n{time}\n{scope}\n{hash}");
    Ok((parameters, text))
}

/// Reads a private key: PKCS #8 in PEM (RFC 7468, section 10).
fn rsa_key(pem: &str) -> Result<RsaKeyPair, String> {
    let lines = pem.lines().map(str::trim);
    let base64: String = lines.filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(base64);
    let key = der.ok().and_then(|der| RsaKeyPair::from_pkcs8(&der).ok());
    key.ok_or_else(|| "the private key is not RSA in PKCS #8".to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::S3Credentials;

    /// A key that was generated for these tests: `openssl genpkey -algorithm RSA`.
    const KEY: &str = include_str!("test_key.pem");

    /// 2019-02-01T09:00:00Z
    const NOW: Duration = Duration::from_secs(1_549_011_600);

    fn source(json: Value) -> HttpSource {
        serde_json::from_value(json).unwrap()
    }

    fn address(source: &HttpSource, location: &str) -> FileAddress {
        let keys = match &source.access {
            Access::S3(access) => match &access.credentials {
                S3Credentials::Keys(keys) => Some(keys),
                _ => None,
            },
            _ => None,
        };
        of(source, &Url::parse(location).unwrap(), keys, NOW).unwrap()
    }

    fn parameter(url: &Url, name: &str) -> Option<String> {
        let mut pairs = url.query_pairs();
        let found = pairs.find(|(known, _)| known == name);
        found.map(|(_, value)| value.into_owned())
    }

    /// A published signature of Google: the object, the time, how long it is valid, and the URL.
    #[derive(serde::Deserialize)]
    struct Published {
        object: String,
        seconds_since_1970: u64,
        valid_seconds: u64,
        url: String,
    }

    /// Google's published URLs for reading an object, of `storage/v1/v4_signatures.json` in
    /// <https://github.com/googleapis/conformance-tests> (Apache-2.0): those without further
    /// headers and parameters. `google_test_key.b64` is the public key of the test account there.
    #[test]
    fn what_is_signed_for_google_is_what_its_published_signatures_sign() {
        let email = "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com";
        let key: String = include_str!("google_test_key.b64").lines().collect();
        let key = STANDARD.decode(key).unwrap();
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key);
        let published: Vec<Published> =
            serde_json::from_str(include_str!("google_signatures.json")).unwrap();
        assert_eq!(published.len(), 3);
        for vector in published {
            let now = Duration::from_secs(vector.seconds_since_1970);
            let valid = Duration::from_secs(vector.valid_seconds);
            let object = Url::parse(&vector.object).unwrap();
            let (mut parameters, text) = gcs_request(email, &object, now, valid).unwrap();
            let url = Url::parse(&vector.url).unwrap();
            let signature = parameter(&url, "X-Goog-Signature").unwrap();
            key.verify(text.as_bytes(), &unhex(&signature)).unwrap();
            assert!(key.verify(b"another text", &unhex(&signature)).is_err());
            parameters.push(("X-Goog-Signature".to_owned(), signature));
            let ours = with_parameters(&object, parameters.into_iter());
            assert_eq!(ours.as_str(), vector.url);
        }
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits = (0..text.len()).step_by(2);
        let bytes = digits.map(|at| u8::from_str_radix(&text[at..at + 2], 16));
        bytes.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_google_address_is_signed_with_the_key_of_the_account() {
        let source = source(json!({
            "type": "gcs", "id": "a", "bucket": "symbols", "prefix": "x y", "client_email": "me@x.test", "private_key": KEY,
        }));
        let FileAddress { sent, shown } = address(&source, "gs://symbols/x%20y/ab/cd+e.debug");
        let path = "https://storage.googleapis.com/symbols/x%20y/ab/cd%2Be.debug";
        assert_eq!(shown.as_str(), path);
        let signature = parameter(&sent, "X-Goog-Signature").unwrap();
        let signature = unhex(&signature);
        let (_, text) = gcs_request("me@x.test", &shown, NOW, VALID_FOR).unwrap();
        let key = rsa_key(KEY).unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public());
        public.verify(text.as_bytes(), &signature).unwrap();
        assert_eq!(parameter(&sent, "X-Goog-Expires").unwrap(), "900");
    }

    #[test]
    fn an_access_token_of_google_is_not_part_of_the_address() {
        let source = source(json!({
            "type": "gcs", "id": "a", "bucket": "symbols", "bearer_token": "sesame",
        }));
        let address = address(&source, "gs://symbols/ab/cd");
        assert_eq!(address.sent, address.shown);
        assert!(!format!("{source:?}").contains("sesame"));
    }

    #[test]
    fn a_bucket_of_s3_is_a_host_or_the_beginning_of_a_path() {
        let shown = |bucket: &str, region: Value| {
            let source =
                source(json!({"type": "s3", "id": "a", "bucket": bucket, "region": region}));
            let location = format!("s3://{bucket}/a%20b/c.pdb");
            let address = address(&source, &location);
            assert_eq!(address.sent, address.shown, "no credentials");
            assert_eq!(own(&source).origin(), address.shown.origin());
            address.shown.to_string()
        };
        assert_eq!(
            shown("symbols", "eu-central-1".into()),
            "https://symbols.s3.eu-central-1.amazonaws.com/a%20b/c.pdb"
        );
        assert_eq!(
            shown("my.symbols", "eu-central-1".into()),
            "https://s3.eu-central-1.amazonaws.com/my.symbols/a%20b/c.pdb"
        );
        assert_eq!(
            shown("symbols", "cn-north-1".into()),
            "https://symbols.s3.cn-north-1.amazonaws.com.cn/a%20b/c.pdb"
        );
        assert_eq!(
            shown("my.symbols", "eusc-de-east-1".into()),
            "https://s3.eusc-de-east-1.amazonaws.eu/my.symbols/a%20b/c.pdb"
        );
        assert_eq!(
            shown("symbols", json!(["minio", "http://minio.test:9000/s3/"])),
            "http://minio.test:9000/s3/symbols/a%20b/c.pdb"
        );
    }

    #[test]
    fn an_address_of_s3_is_signed_and_shows_no_credentials() {
        let source = source(json!({
            "type": "s3", "id": "a", "bucket": "symbols", "region": "us-east-1", "access_key": "AKIA", "secret_key": "sesame",
            "session_token": "a+token/",
        }));
        let FileAddress { sent, shown } = address(&source, "s3://symbols/ab/cd");
        assert_eq!(shown.query(), None);
        assert_eq!(
            parameter(&sent, "X-Amz-Credential").unwrap(),
            "AKIA/20190201/us-east-1/s3/aws4_request"
        );
        assert_eq!(parameter(&sent, "X-Amz-Expires").unwrap(), "900");
        assert_eq!(
            parameter(&sent, "X-Amz-Security-Token").unwrap(),
            "a+token/"
        );
        assert_eq!(parameter(&sent, "X-Amz-Signature").unwrap().len(), 64);
        assert!(!sent.as_str().contains("sesame"));
    }

    #[test]
    fn a_file_of_sentry_is_requested_by_its_id() {
        let source = source(json!({
            "type": "sentry", "id": "sentry:project", "url": "https://sentry.test/api/0/files/dsyms/?x=1", "token": "sesame",
        }));
        let address = address(&source, "sentry://project_debug_file/a%2Fb");
        assert_eq!(
            address.sent.as_str(),
            "https://sentry.test/api/0/files/dsyms/?x=1&id=a%2Fb"
        );
        assert_eq!(
            address.shown.as_str(),
            "https://sentry.test/api/0/files/dsyms/"
        );
    }

    #[test]
    fn a_malformed_private_key_is_reported() {
        for text in [
            "",
            "sesame",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
        ] {
            let error = rsa_key(text).map(|_| ()).unwrap_err();
            assert_eq!(error, "the private key is not RSA in PKCS #8");
        }
    }
}
