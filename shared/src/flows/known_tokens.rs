//! What an instance knows of access tokens, valid and refused ones, for a time.

use std::sync::Arc;
use std::time::Duration;

use quick_cache::sync::Cache;

use super::Invocation;
use super::moment::Moment;
use crate::cache::IssuedToken;

/// How long an instance uses what it knows of a token. A request that began with a token before it
/// was revoked ends 29 s later at most, so that the token is of no use after a minute.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// How long an instance refuses an unknown token without a read. No token becomes valid later: its
/// random bits are drawn when it is issued.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// The maximum number of tokens that an instance knows, valid and refused ones.
const MAX_KNOWN: usize = 10_000;

/// What an instance knows of access tokens, by their ids.
#[derive(Debug)]
pub(super) struct KnownTokens(Cache<String, KnownToken>);

/// When a token was read, and its state.
type KnownToken = (Moment, TokenState);

/// The state of an access token as it was read.
#[derive(Clone, Debug)]
pub(super) enum TokenState {
    /// It was issued. It may be expired or revoked by now.
    Issued(Arc<IssuedToken>),
    /// There is no such token.
    Unknown,
}

impl TokenState {
    /// Returns the state of a token whose item was read; `None` if there is no such token.
    pub(super) fn of(read: Option<IssuedToken>) -> Self {
        read.map_or(Self::Unknown, |token| Self::Issued(Arc::new(token)))
    }
}

impl Default for KnownTokens {
    fn default() -> Self {
        Self(Cache::new(MAX_KNOWN))
    }
}

impl KnownTokens {
    /// Returns what is known of a token; `None` if it must be read.
    pub(super) fn of(&self, invocation: &Invocation, id: &str) -> Option<TokenState> {
        let (read, state) = self.0.get(id)?;
        let valid_for = match state {
            TokenState::Issued(_) => KNOWN_FOR,
            TokenState::Unknown => REFUSED_FOR,
        };
        (read.elapsed(invocation) < valid_for).then_some(state)
    }

    /// Keeps what was read of a token at this time.
    pub(super) fn remember(&self, id: String, read: Moment, state: TokenState) {
        self.0.insert(id, (read, state));
    }

    /// Forgets a token, so that it is read again.
    pub(super) fn forget(&self, id: &str) {
        self.0.remove(id);
    }
}
