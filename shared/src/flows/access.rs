//! Access tokens: issues, lists and revokes them, and finds what a token grants.
//!
//! A token is looked up by its hash. What was found is kept in memory for a time, also that a token
//! is unknown, so that a client with a wrong token costs one read a minute. When this time has
//! passed, all instances refuse a token that was revoked.

use std::cmp::Reverse;
use std::time::Duration;

use super::HttpService;
use super::known_tokens::TokenState;
use super::moment::Moment;
use super::{Error, Invocation};
use crate::api::tokens::{MAX_DAYS, NAME_BYTES, TokenInfo, TokenIssued, TokenList, TokenRequest};
use crate::cache::{IssuedToken, Item, ItemKey};
use crate::domain::{AccessToken, GrantedScope, Grants, Scope};

/// How long the item of a revoked token stays.
const REVOKED_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The maximum number of valid tokens of a scope, so that its admins leave room for the others.
const MAX_TOKENS_OF_SCOPE: usize = 500;

/// The maximum number of valid tokens. The list of them is one response.
const MAX_TOKENS: usize = 5_000;

impl HttpService {
    /// Returns the id of a token, and what it grants; `None` if it is unknown, expired or revoked.
    pub async fn token_grants(
        &self,
        invocation: &Invocation,
        token: &AccessToken,
    ) -> Result<Option<(String, Grants)>, Error> {
        let id = token.id();
        let tokens = self.memory.tokens();
        let state = match tokens.of(invocation, &id) {
            Some(state) => state,
            None => {
                let read = Moment::now(invocation);
                let key = ItemKey::issued_token(&id);
                let state = TokenState::of(self.records.one(key).await?);
                tokens.remember(id.clone(), read, state.clone());
                state
            }
        };
        Ok(match state {
            TokenState::Issued(token) if token.is_valid(invocation.now()) => {
                Some((id, token.grants()))
            }
            TokenState::Issued(_) | TokenState::Unknown => None,
        })
    }

    /// Issues a token. `by` are the grants of the caller, who may issue tokens for its own scopes
    /// only.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the request is invalid, [`Error::Refused`] if the scope is another one.
    pub async fn issue_token(
        &self,
        invocation: &Invocation,
        by: &Grants,
        request: TokenRequest,
    ) -> Result<TokenIssued, Error> {
        let scope = checked(&request)?;
        if !may_manage(by, &scope) {
            let detail = "the credential can issue tokens for its own scopes only".to_owned();
            return Err(Error::Refused { detail });
        }
        let valid = self.valid_tokens(invocation).await?;
        let of_scope = valid.iter().filter(|token| token.scope == scope).count();
        for (count, limit, whose) in [
            (of_scope, MAX_TOKENS_OF_SCOPE, "of this scope"),
            (valid.len(), MAX_TOKENS, "of all scopes together"),
        ] {
            if count >= limit {
                let detail =
                    format!("{limit} tokens {whose} are valid: revoke those that are not used");
                return Err(Error::Invalid { detail });
            }
        }
        let token = invocation.access_token();
        let now = invocation.now();
        let valid_until = now.plus(Duration::from_secs(u64::from(request.days) * 24 * 3600));
        let issued = IssuedToken {
            id: token.id(),
            name: request.name,
            scope,
            rights: request.rights,
            issued_at: now,
            valid_until,
            revoked_at: None,
            expires_at: valid_until,
        };
        let key = ItemKey::issued_token(&issued.id);
        let item = Item::IssuedToken(issued.clone());
        let put = |present: Option<&Item>| present.is_none().then(|| item.clone());
        self.writer(invocation).put_with(&key, put).await?;
        Ok(TokenIssued {
            token: token.reveal(),
            info: info(issued),
        })
    }

    /// Lists the valid tokens that a caller with these grants may revoke, the newest first.
    pub async fn tokens(&self, invocation: &Invocation, by: &Grants) -> Result<TokenList, Error> {
        let mut tokens = self.valid_tokens(invocation).await?;
        tokens.retain(|token| may_manage(by, &token.scope));
        tokens.sort_by_key(|token| Reverse(token.issued_at));
        Ok(TokenList {
            tokens: tokens.into_iter().map(info).collect(),
        })
    }

    /// Revokes a token. Returns whether it was valid, and the caller may: a token of another scope
    /// is as unknown as one that does not exist.
    pub async fn revoke_token(
        &self,
        invocation: &Invocation,
        by: &Grants,
        id: &str,
    ) -> Result<bool, Error> {
        let now = invocation.now();
        let mut is_revoked = false;
        let revoke = |present: Option<&Item>| {
            // Called again after a lost race, in which another caller may have revoked it.
            is_revoked = false;
            let Some(Item::IssuedToken(token)) = present else {
                return None;
            };
            if !may_manage(by, &token.scope) || !token.is_valid(now) {
                return None;
            }
            is_revoked = true;
            Some(Item::IssuedToken(IssuedToken {
                revoked_at: Some(now),
                expires_at: now.plus(REVOKED_LIFETIME),
                ..token.clone()
            }))
        };
        let key = ItemKey::issued_token(id);
        self.writer(invocation).put_with(&key, revoke).await?;
        self.memory.tokens().forget(id);
        Ok(is_revoked)
    }

    async fn valid_tokens(&self, invocation: &Invocation) -> Result<Vec<IssuedToken>, Error> {
        let items = self.records.query(&ItemKey::issued_tokens()).await?;
        let tokens = items
            .into_iter()
            .filter_map(|(_, stored)| match stored.item {
                Item::IssuedToken(token) => Some(token),
                _ => None,
            });
        let now = invocation.now();
        Ok(tokens.filter(|token| token.is_valid(now)).collect())
    }
}

/// Returns whether a caller with these grants may issue and revoke tokens of a scope.
fn may_manage(by: &Grants, scope: &GrantedScope) -> bool {
    match scope {
        GrantedScope::One(scope) => by.cover(scope),
        GrantedScope::Every | GrantedScope::None => by.are_everywhere(),
    }
}

/// Returns the scope of a request for a token; fails with what is wrong with the request.
fn checked(request: &TokenRequest) -> Result<GrantedScope, Error> {
    let invalid = |detail: String| Error::Invalid { detail };
    let name = &request.name;
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
        let detail = format!("name: use 1 to {NAME_BYTES} bytes without control characters");
        return Err(invalid(detail));
    }
    if request.rights.is_empty() {
        return Err(invalid("rights: name at least one".to_owned()));
    }
    if request.days == 0 || request.days > MAX_DAYS {
        return Err(invalid(format!("days: use 1 to {MAX_DAYS}")));
    }
    if request.scope == GrantedScope::EVERY {
        return Ok(GrantedScope::Every);
    }
    let scope = request.scope.parse::<Scope>();
    let scope = scope.map_err(|error| invalid(format!("scope: {error}")))?;
    Ok(GrantedScope::One(scope))
}

fn info(token: IssuedToken) -> TokenInfo {
    TokenInfo {
        id: token.id,
        name: token.name,
        scope: token.scope.into(),
        rights: token.rights,
        issued_at: token.issued_at,
        valid_until: token.valid_until,
    }
}
