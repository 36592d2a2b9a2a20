//! Microsoft's clients: what is checked of the files that they get.

use std::time::Duration;

use symdepot::flows::ms_symcache::SymCacheResponse;

use super::{Appointment, Asked, Fleet, Wants};
use crate::simulate::Moment;
use crate::simulate::mistakes::Mistake;

/// A presigned URL that a client got.
#[derive(Clone, Debug)]
pub(super) struct IssuedUrl {
    /// The name in the file that it leads to.
    name: String,
    module: usize,
    scope: &'static str,
    expires: Moment,
}

impl Fleet {
    /// Checks the response to a client.
    pub(super) fn downloaded(
        &mut self,
        name: &str,
        mut asked: Asked,
        response: Result<SymCacheResponse, String>,
    ) {
        self.update_truth();
        let is_hidden = self.stores.mistake == Some(Mistake::NotModifiedIsNeverSaid);
        let response = match response {
            Ok(SymCacheResponse::NotModified) if is_hidden => {
                Ok(SymCacheResponse::Pending(Duration::from_secs(1)))
            }
            response => response,
        };
        let (scope, module) = (asked.scope, asked.modules[0]);
        let shown = match &response {
            Ok(SymCacheResponse::File { .. }) => "a file".to_owned(),
            Ok(other) => other.name().to_owned(),
            Err(error) => format!("fails: {error}"),
        };
        self.note(|| format!("{name} answers {scope} for app{module}.pdb: {shown}"));
        let version = match response {
            Ok(SymCacheResponse::File { url, content_type }) => {
                self.check_url(scope, module, &url);
                let minor = content_type.rsplit("version=").next().map(str::to_owned);
                minor.and_then(|version| version.split('.').nth(1)?.parse().ok())
            }
            Ok(SymCacheResponse::Nothing) => None,
            Ok(SymCacheResponse::NotModified) => {
                self.awaited -= u64::from(asked.is_final);
                return;
            }
            Ok(SymCacheResponse::Pending(_) | SymCacheResponse::Unknown(_)) | Err(_) => {
                let is_last = asked.repeats == 0;
                asked.repeats = asked.repeats.saturating_sub(1);
                if !is_last {
                    self.appoint(self.now + Duration::from_secs(3), Appointment::Ask(asked));
                } else if asked.is_final {
                    let detail = format!("{scope} app{module}.pdb: {shown}");
                    self.fail("6: every wait ends", detail);
                }
                return;
            }
        };
        self.stores.ledger().counts.answers += 1;
        let best = self.truth.highest(scope, module);
        if asked.is_final && asked.repeats > 0 && version.is_some() && version < best {
            // What is ready is served while a higher version is stored. The client asks again.
            asked.repeats -= 1;
            self.appoint(self.now + Duration::from_secs(3), Appointment::Ask(asked));
            return;
        }
        if asked.is_final {
            self.awaited -= 1;
            if let (Some(minor), Wants::File { present: None, .. }) = (version, asked.wants) {
                // The server says that the client has the newest version.
                self.awaited += 1;
                let again = Asked {
                    wants: Wants::File {
                        retries: false,
                        present: Some(minor),
                    },
                    ..asked.clone()
                };
                self.appoint(self.now, Appointment::Ask(again));
            }
            if best != version && self.given_up().is_empty() {
                let detail = format!("app{module}.pdb@{scope}: {version:?} instead of {best:?}");
                self.fail("the answer is that of the reference", detail);
            }
        }
    }

    /// Checks that a URL leads to a file that the client may have until it expires.
    fn check_url(&mut self, scope: &'static str, module: usize, url: &str) {
        let Some((path, rest)) = url
            .trim_start_matches("memory://blobs/")
            .split_once("?seconds=")
        else {
            self.fail("a presigned URL", url.to_owned());
            return;
        };
        let seconds = rest.split('&').next().and_then(|text| text.parse().ok());
        let expires = self.now + Duration::from_secs(seconds.unwrap_or(u64::MAX / 2));
        let Some(bytes) = self.stores.caches.peek(path) else {
            // The file was removed since. The client asks again.
            return;
        };
        let name = String::from_utf8_lossy(&bytes).into_owned();
        let is_damaged = self
            .stores
            .ledger()
            .damaged
            .iter()
            .any(|damaged| damaged == path);
        if is_damaged {
            return;
        }
        let issued = IssuedUrl {
            name,
            module,
            scope,
            expires,
        };
        self.check_issued(&issued);
        self.issued.push(issued);
    }

    /// Checks that no URL leads to a file that was removed after the URL was issued.
    pub(super) fn check_all_issued(&self) {
        for issued in &self.issued {
            self.check_issued(issued);
        }
    }

    fn check_issued(&self, issued: &IssuedUrl) {
        let IssuedUrl {
            name,
            module,
            scope,
            expires,
        } = issued;
        let objection = self.truth.objection(name, *module, scope, *expires);
        if let Some((property, detail)) = objection {
            let detail = format!("{detail}, in a URL that is valid until {expires:?}");
            self.fail(property, detail);
        }
    }
}
