//! The HTTP clients, their time limits, and how they resolve names.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, redirect};

use super::attempts::OnlyPrivate;
use super::reach::Reach;
use super::status::Refusal;

/// The time limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// For establishing a connection.
    pub connect: Duration,
    /// For a server that sends nothing.
    pub silence: Duration,
    /// For everything that precedes the body of a file, or for a whole listing: all attempts,
    /// redirects and further files of the protocol.
    pub answer: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            answer: Duration::from_secs(30),
        }
    }
}

/// Returns the beginning of every client: it follows no redirect, and no proxy is used.
pub(in crate::adapters) fn client() -> ClientBuilder {
    // A process has one provider. An error means that an earlier call installed the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
}

/// The HTTP clients: two for each reach. Each is built on first use, because reading the root
/// certificates takes time, and a machine may have none.
#[derive(Debug, Default)]
pub(super) struct HttpClients {
    /// Whether bodies are left as they are sent, whatever their `Content-Encoding` is.
    are_bodies_raw: bool,
    /// For configured sources: connections are reused.
    kept: [OnceLock<Client>; Reach::ALL.len()],
    /// For sources that requests define: no connection is reused.
    single: [OnceLock<Client>; Reach::ALL.len()],
}

impl HttpClients {
    /// Returns clients that decode no body. The others decode parts of files, too, which are no
    /// valid streams.
    pub(super) fn of_raw_bodies() -> Self {
        Self {
            are_bodies_raw: true,
            ..Self::default()
        }
    }

    pub(super) fn get(
        &self,
        reach: Reach,
        is_defined: bool,
        limits: TimeLimits,
    ) -> Result<&Client, Refusal> {
        let clients = if is_defined { &self.single } else { &self.kept };
        let kept = &clients[reach as usize];
        if let Some(client) = kept.get() {
            return Ok(client);
        }
        let mut builder = client()
            .connect_timeout(limits.connect)
            .read_timeout(limits.silence)
            .dns_resolver(Arc::new(CheckedNames { reach }));
        if is_defined {
            builder = builder.pool_max_idle_per_host(0);
        }
        if self.are_bodies_raw {
            builder = builder.no_gzip().no_zstd().no_brotli().no_deflate();
        }
        let built = builder.build().map_err(|error| {
            Refusal::forever(format!("the HTTP client cannot be created: {error}"))
        })?;
        Ok(kept.get_or_init(|| built))
    }
}

/// Resolves names, and drops the addresses that may not be connected to.
#[derive(Debug)]
struct CheckedNames {
    reach: Reach,
}

impl Resolve for CheckedNames {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let is_allowed = |found: &SocketAddr| reach.allows(found.ip());
            let allowed: Vec<SocketAddr> = found.iter().copied().filter(is_allowed).collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(Box::new(OnlyPrivate) as Box<dyn std::error::Error + Send + Sync>);
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
