//! The HTTP client of the SDK, over hyper.
//!
//! The SDK's own client contains HTTP/2, which S3, DynamoDB and SQS do not need: this one speaks
//! HTTP/1.1 only. All clients of one [`SdkHttpClient`] share its pool of connections. A proxy of
//! the environment is not used. The limit for connecting is the same for all services: that of
//! their settings has no effect.
//!
//! Source of the contract: the documentation of `aws_smithy_runtime_api::client::http`. Its
//! timeout of a read is from the begin of a request to the first byte of the response.

use std::error::Error;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http::uri::Scheme;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

use super::connections::Connections;

/// A connection takes a millisecond within one region. One that is not established after this time
/// is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Marks a request that is not sent: only its connection is established ([`Connections`]). The
/// SDK, which knows the address, receives an error that it does not retry.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyConnect;

/// The error of a request that was only to connect, and did.
#[derive(Debug, thiserror::Error)]
#[error("connected, and sent no request")]
pub(super) struct Connected;

/// The connections of one scheme.
#[derive(Debug)]
struct Pool {
    client: Client<Connections, SdkBody>,
    connections: Connections,
}

/// The client. It connects on first use. Cheap to clone; clones share their connections.
#[derive(Clone, Debug, Default)]
pub(super) struct SdkHttpClient(Arc<Pools>);

/// Connections for plain HTTP, as on one machine, and for HTTPS. The root certificates are read
/// when HTTPS is first used, because that takes time, and a machine may have none.
#[derive(Debug, Default)]
struct Pools {
    plain: OnceLock<Pool>,
    secure: OnceLock<Pool>,
}

impl SdkHttpClient {
    /// Returns a new client in the form that the SDK takes.
    pub(super) fn shared() -> SharedHttpClient {
        SharedHttpClient::new(Self::default())
    }

    fn pool(&self, scheme: Option<&Scheme>) -> io::Result<&Pool> {
        let is_plain = scheme == Some(&Scheme::HTTP);
        let pool = if is_plain {
            &self.0.plain
        } else {
            &self.0.secure
        };
        if let Some(pool) = pool.get() {
            return Ok(pool);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = HttpsConnectorBuilder::new();
        let tls = if is_plain {
            let versions = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?;
            let trusts_none = versions.with_root_certificates(RootCertStore::empty());
            tls.with_tls_config(trusts_none.with_no_client_auth())
        } else {
            tls.with_provider_and_native_roots(provider)?
        };
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let connections = Connections::new(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connections.clone());
        Ok(pool.get_or_init(|| Pool {
            client,
            connections,
        }))
    }
}

impl HttpClient for SdkHttpClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            client: self.clone(),
            read_timeout: settings.read_timeout(),
        })
    }
}

/// The client with the timeout of one service.
#[derive(Debug)]
struct Connector {
    client: SdkHttpClient,
    read_timeout: Option<Duration>,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let request = match request.try_into_http1x() {
            Ok(request) => request,
            Err(error) => {
                return HttpConnectorFuture::ready(Err(ConnectorError::user(error.into())));
            }
        };
        let pool = match self.client.pool(request.uri().scheme()) {
            Ok(pool) => pool,
            Err(error) => {
                return HttpConnectorFuture::ready(Err(ConnectorError::other(error.into(), None)));
            }
        };
        if request.extensions().get::<OnlyConnect>().is_some() {
            let (connections, url) = (pool.connections.clone(), request.uri().clone());
            return HttpConnectorFuture::new(async move {
                let prepared = connections.prepare(&url).await;
                let reason = prepared.map_or_else(|error| error, |()| Connected.into());
                Err(ConnectorError::user(reason))
            });
        }
        let sent = pool.client.request(request);
        let read_timeout = self.read_timeout;
        HttpConnectorFuture::new(async move {
            let response = match read_timeout {
                None => sent.await,
                Some(limit) => tokio::time::timeout(limit, sent)
                    .await
                    .map_err(|elapsed| ConnectorError::timeout(elapsed.into()))?,
            };
            let response = response.map_err(connector_error)?;
            HttpResponse::try_from(response.map(SdkBody::from_body_1_x))
                .map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

/// Returns how the SDK handles an error. It retries timeouts and broken connections.
fn connector_error(error: hyper_util::client::legacy::Error) -> ConnectorError {
    let of_hyper = causes(&error).find_map(|cause| cause.downcast_ref::<hyper::Error>());
    let has_timed_out = causes(&error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::TimedOut);
    if has_timed_out || of_hyper.is_some_and(hyper::Error::is_timeout) {
        ConnectorError::timeout(error.into())
    } else if of_hyper.is_some_and(hyper::Error::is_user) {
        ConnectorError::user(error.into())
    } else {
        ConnectorError::io(error.into())
    }
}

pub(super) fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one request on a connection.
    async fn serve(stream: &mut tokio::net::TcpStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    }

    async fn server() -> (TcpListener, http::Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        (listener, url.parse().unwrap())
    }

    async fn get(client: &SdkHttpClient, url: &http::Uri) -> u16 {
        let request = http::Request::get(url).body(SdkBody::empty()).unwrap();
        let pool = client.pool(url.scheme()).unwrap();
        pool.client.request(request).await.unwrap().status().into()
    }

    fn connections(client: &SdkHttpClient) -> Connections {
        client
            .pool(Some(&Scheme::HTTP))
            .unwrap()
            .connections
            .clone()
    }

    /// Accepted again, the server would serve the second connection and not the first.
    #[tokio::test]
    async fn a_request_uses_the_connection_that_was_prepared_for_its_server() {
        let (listener, url) = server().await;
        let client = SdkHttpClient::default();
        connections(&client).prepare(&url).await.unwrap();
        let (mut prepared, _) = listener.accept().await.unwrap();
        drop(listener);
        let (status, ()) = tokio::join!(get(&client, &url), serve(&mut prepared));
        assert_eq!(status, 204);
    }

    #[tokio::test]
    async fn a_prepared_connection_is_not_used_for_another_server() {
        let (listener, url) = server().await;
        let (other, url_of_other) = server().await;
        let client = SdkHttpClient::default();
        connections(&client).prepare(&url).await.unwrap();
        let served = async {
            let (mut stream, _) = other.accept().await.unwrap();
            serve(&mut stream).await;
        };
        let (status, ()) = tokio::join!(get(&client, &url_of_other), served);
        assert_eq!(status, 204);
        drop(listener);
    }

    #[tokio::test]
    async fn a_prepared_connection_that_its_server_has_closed_is_replaced() {
        let (listener, url) = server().await;
        let client = SdkHttpClient::default();
        connections(&client).prepare(&url).await.unwrap();
        drop(listener.accept().await.unwrap());
        connections(&client).closed().await;
        let served = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            serve(&mut stream).await;
        };
        let (status, ()) = tokio::join!(get(&client, &url), served);
        assert_eq!(status, 204);
    }
}
