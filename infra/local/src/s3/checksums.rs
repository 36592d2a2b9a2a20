//! The additional checksums of S3: reading them from a request, verifying the bytes, and combining
//! the checksums of the parts of a multipart upload.
//!
//! Source: Amazon S3 User Guide, "Checking object integrity".

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::{ChecksumAlgorithm, ChecksumType};
use s3s::{S3Error, S3Result, TrailingHeaders, s3_error};
use serde::{Deserialize, Serialize};

/// A checksum algorithm of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    /// All algorithms.
    pub(crate) const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    /// The algorithm that S3 uses if a request specifies none.
    pub(crate) const DEFAULT: Self = Self::Crc64Nvme;

    /// The name in `x-amz-checksum-algorithm`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => ChecksumAlgorithm::CRC32,
            Self::Crc32c => ChecksumAlgorithm::CRC32C,
            Self::Crc64Nvme => ChecksumAlgorithm::CRC64NVME,
            Self::Sha1 => ChecksumAlgorithm::SHA1,
            Self::Sha256 => ChecksumAlgorithm::SHA256,
        }
    }

    /// Returns the algorithm with this name.
    pub(crate) fn parse(name: &str) -> S3Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                s3_error!(
                    InvalidRequest,
                    "the local stack does not support the checksum algorithm {name:?}"
                )
            })
    }

    fn header(self) -> String {
        format!("x-amz-checksum-{}", self.name().to_ascii_lowercase())
    }

    /// Returns the CRC variant for combining checksums; `None` for algorithms that cannot be
    /// combined.
    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }
}

/// Checksums of one object or part, in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksums {
    /// Whether they are computed over the parts' checksums instead of over the bytes.
    pub(crate) composite: bool,
    /// The values.
    pub(crate) values: BTreeMap<Algorithm, String>,
}

impl Checksums {
    /// Returns the value of an algorithm.
    pub(crate) fn get(&self, algorithm: Algorithm) -> Option<String> {
        self.values.get(&algorithm).cloned()
    }

    /// Returns `x-amz-checksum-type`, if there is a checksum.
    pub(crate) fn kind(&self) -> Option<ChecksumType> {
        (!self.values.is_empty()).then(|| kind(self.composite))
    }
}

/// Returns `COMPOSITE` or `FULL_OBJECT`.
pub(crate) fn kind(composite: bool) -> ChecksumType {
    ChecksumType::from_static(if composite {
        ChecksumType::COMPOSITE
    } else {
        ChecksumType::FULL_OBJECT
    })
}

/// The checksums that a request claims for its body.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Checksums in headers, and in trailers once they are read.
    pub(crate) values: BTreeMap<Algorithm, String>,
    /// Algorithms to compute for which no value is known yet.
    pub(crate) wanted: Vec<Algorithm>,
    /// `Content-MD5`.
    pub(crate) md5: Option<String>,
    trailers: Option<TrailingHeaders>,
}

impl Claims {
    /// Returns the claims of a request with these headers and trailers. Call it before reading the
    /// body.
    pub(crate) fn of(
        headers: &HeaderMap,
        trailers: Option<TrailingHeaders>,
        algorithm: Option<&ChecksumAlgorithm>,
    ) -> S3Result<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut claims = Self {
            md5: text("content-md5").map(str::to_owned),
            trailers,
            ..Self::default()
        };
        for algorithm in Algorithm::ALL {
            if let Some(value) = text(&algorithm.header()) {
                claims.values.insert(algorithm, value.to_owned());
            }
        }
        if let Some(algorithm) = algorithm {
            claims.wanted.push(Algorithm::parse(algorithm.as_str())?);
        }
        for name in headers
            .get_all("x-amz-trailer")
            .iter()
            .filter_map(|value| value.to_str().ok())
        {
            for name in name.split(',') {
                let name = name.trim().to_ascii_lowercase();
                claims.wanted.extend(
                    Algorithm::ALL
                        .into_iter()
                        .filter(|algorithm| algorithm.header() == name),
                );
            }
        }
        Ok(claims)
    }

    /// Returns no claims and one checksum to compute.
    pub(crate) fn computing(algorithm: Algorithm) -> Self {
        Self {
            wanted: vec![algorithm],
            ..Self::default()
        }
    }

    /// Returns a hasher for all claimed and requested algorithms, or for S3's default.
    pub(crate) fn hasher(&mut self) -> Hasher {
        self.wanted.extend(self.values.keys());
        if self.wanted.is_empty() {
            self.wanted.push(Algorithm::DEFAULT);
        }
        let mut hasher = ChecksumHasher::default();
        for algorithm in &self.wanted {
            match algorithm {
                Algorithm::Crc32 => hasher.crc32 = Some(Crc32::new()),
                Algorithm::Crc32c => hasher.crc32c = Some(Crc32c::new()),
                Algorithm::Crc64Nvme => hasher.crc64nvme = Some(Crc64Nvme::new()),
                Algorithm::Sha1 => hasher.sha1 = Some(Sha1::new()),
                Algorithm::Sha256 => hasher.sha256 = Some(Sha256::new()),
            }
        }
        Hasher(hasher)
    }

    /// Reads the checksums in the trailers, which follow the body.
    pub(crate) fn read_trailers(&mut self) {
        let Some(trailers) = self.trailers.take().and_then(|trailers| trailers.take()) else {
            return;
        };
        for algorithm in Algorithm::ALL {
            if let Some(value) = trailers
                .get(algorithm.header())
                .and_then(|value| value.to_str().ok())
            {
                self.values.insert(algorithm, value.to_owned());
            }
        }
    }

    /// Compares the claims with the computed checksums, and returns the latter.
    pub(crate) fn verify(&self, md5: &[u8], computed: Checksums) -> S3Result<Checksums> {
        if let Some(claimed) = &self.md5 {
            let claimed = STANDARD
                .decode(claimed)
                .ok()
                .filter(|claimed| claimed.len() == md5.len())
                .ok_or_else(|| s3_error!(InvalidDigest, "the Content-MD5 is invalid"))?;
            if claimed != md5 {
                return Err(s3_error!(
                    BadDigest,
                    "the Content-MD5 does not match the received bytes"
                ));
            }
        }
        for (algorithm, claimed) in &self.values {
            if computed.values.get(algorithm) != Some(claimed) {
                return Err(mismatch(*algorithm));
            }
        }
        Ok(computed)
    }
}

fn mismatch(algorithm: Algorithm) -> S3Error {
    s3_error!(
        BadDigest,
        "the {} does not match the received bytes",
        algorithm.name()
    )
}

/// Computes several checksums in one pass.
pub(crate) struct Hasher(ChecksumHasher);

impl Hasher {
    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksums of all bytes.
    pub(crate) fn finish(self) -> Checksums {
        let sums = self.0.finalize();
        let values = [
            (Algorithm::Crc32, sums.checksum_crc32),
            (Algorithm::Crc32c, sums.checksum_crc32c),
            (Algorithm::Crc64Nvme, sums.checksum_crc64nvme),
            (Algorithm::Sha1, sums.checksum_sha1),
            (Algorithm::Sha256, sums.checksum_sha256),
        ];
        Checksums {
            composite: false,
            values: values
                .into_iter()
                .filter_map(|(algorithm, value)| Some((algorithm, value?)))
                .collect(),
        }
    }
}

/// Returns the checksum of an object that consists of `parts`, each with its size; `None` if a part
/// has no checksum of this algorithm.
pub(crate) fn of_parts(
    algorithm: Algorithm,
    composite: bool,
    parts: &[(u64, &Checksums)],
) -> S3Result<Option<Checksums>> {
    let mut values = Vec::with_capacity(parts.len());
    for (size, checksums) in parts {
        let Some(value) = checksums.values.get(&algorithm) else {
            return Ok(None);
        };
        let value = STANDARD.decode(value).map_err(|error| {
            s3_error!(
                error,
                InternalError,
                "a stored checksum is not valid base64"
            )
        })?;
        values.push((*size, value));
    }
    let text = if composite {
        let all: Vec<u8> = values
            .iter()
            .flat_map(|(_, value)| value.iter().copied())
            .collect();
        format!(
            "{}-{}",
            STANDARD.encode(digest(algorithm, &all)),
            parts.len()
        )
    } else {
        let Some(crc) = algorithm.crc() else {
            return Err(s3_error!(
                InvalidRequest,
                "{} has no full-object checksum",
                algorithm.name()
            ));
        };
        let number = |value: &[u8]| {
            value
                .iter()
                .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let width = values.first().map_or(0, |(_, value)| value.len());
        let combined = values
            .iter()
            .map(|(size, value)| (*size, number(value)))
            .reduce(|(before, first), (size, second)| {
                // An empty part does not change the checksum, and `checksum_combine` does not
                // support it.
                let sum = if size == 0 {
                    first
                } else {
                    crc_fast::checksum_combine(crc, first, second, size)
                };
                (before + size, sum)
            })
            .map_or(0, |(_, sum)| sum);
        STANDARD.encode(&combined.to_be_bytes()[8 - width..])
    };
    Ok(Some(Checksums {
        composite,
        values: BTreeMap::from([(algorithm, text)]),
    }))
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Crc32 => Crc32::checksum(bytes).to_vec(),
        Algorithm::Crc32c => Crc32c::checksum(bytes).to_vec(),
        Algorithm::Crc64Nvme => Crc64Nvme::checksum(bytes).to_vec(),
        Algorithm::Sha1 => Sha1::checksum(bytes).to_vec(),
        Algorithm::Sha256 => Sha256::checksum(bytes).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(bytes: &[u8]) -> Checksums {
        let mut claims = Claims {
            wanted: Algorithm::ALL.to_vec(),
            ..Claims::default()
        };
        let mut hasher = claims.hasher();
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn the_checksums_equal_the_check_values_of_the_crc_catalogue() {
        // The check values for "123456789" in the catalogue of parametrised CRC algorithms.
        let sums = sums(b"123456789");
        assert_eq!(
            sums.values[&Algorithm::Crc32],
            STANDARD.encode(0xcbf4_3926_u32.to_be_bytes())
        );
        assert_eq!(
            sums.values[&Algorithm::Crc32c],
            STANDARD.encode(0xe306_9283_u32.to_be_bytes())
        );
        assert_eq!(
            sums.values[&Algorithm::Crc64Nvme],
            STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes())
        );
    }

    #[test]
    fn the_parts_of_a_full_object_checksum_combine_to_that_of_all_bytes() {
        let whole = sums(b"the quick brown fox");
        let parts = [sums(b"the quick "), sums(b""), sums(b"brown fox")];
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let combined = of_parts(
                algorithm,
                false,
                &[(10, &parts[0]), (0, &parts[1]), (9, &parts[2])],
            )
            .unwrap()
            .unwrap();
            assert_eq!(
                combined.values[&algorithm], whole.values[&algorithm],
                "{algorithm:?}"
            );
        }
        assert!(of_parts(Algorithm::Sha256, false, &[(10, &parts[0])]).is_err());
    }

    #[test]
    fn a_composite_checksum_counts_its_parts() {
        let parts = [sums(b"a"), sums(b"b")];
        let composite = of_parts(Algorithm::Sha256, true, &[(1, &parts[0]), (1, &parts[1])])
            .unwrap()
            .unwrap();
        // The value is computed over the parts' values and followed by the number of parts.
        assert!(composite.values[&Algorithm::Sha256].ends_with("-2"));
        assert!(composite.composite);
    }

    #[test]
    fn a_wrong_or_malformed_checksum_is_refused() {
        let mut claims = Claims::default();
        claims
            .values
            .insert(Algorithm::Crc32, "AAAAAA==".to_owned());
        let mut hasher = claims.hasher();
        hasher.update(b"abc");
        let error = claims.verify(&[0; 16], hasher.finish()).unwrap_err();
        assert_eq!(error.code().as_str(), "BadDigest");

        let claims = Claims {
            md5: Some("not base64".to_owned()),
            ..Claims::default()
        };
        let error = claims.verify(&[0; 16], Checksums::default()).unwrap_err();
        assert_eq!(error.code().as_str(), "InvalidDigest");
    }
}
