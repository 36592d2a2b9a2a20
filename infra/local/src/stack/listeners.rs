//! The four ports of the stack.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use super::error::StackError;
use crate::functions::Endpoints;

/// The four listeners, all on the loopback interface.
pub(super) struct Listeners {
    /// `http://127.0.0.1:<port>` of the gateway.
    pub(super) address: String,
    pub(super) gateway_port: u16,
    /// The addresses of the other three.
    pub(super) endpoints: Endpoints,
    pub(super) gateway: TcpListener,
    pub(super) s3: TcpListener,
    pub(super) dynamodb: TcpListener,
    pub(super) sqs: TcpListener,
}

impl Listeners {
    pub(super) async fn bind(port: u16) -> Result<Self, StackError> {
        let (gateway, gateway_port) = bind(port, 0, "the gateway").await?;
        let (s3, s3_port) = bind(port, 1, "S3").await?;
        let (dynamodb, dynamodb_port) = bind(port, 2, "DynamoDB").await?;
        let (sqs, sqs_port) = bind(port, 3, "SQS").await?;
        Ok(Self {
            address: url(gateway_port),
            gateway_port,
            endpoints: Endpoints {
                s3: url(s3_port),
                dynamodb: url(dynamodb_port),
                sqs: url(sqs_port),
            },
            gateway,
            s3,
            dynamodb,
            sqs,
        })
    }
}

/// Listens on the port `offset` after `port`, or on any if `port` is 0. Returns the port, too.
async fn bind(
    port: u16,
    offset: u16,
    service: &'static str,
) -> Result<(TcpListener, u16), StackError> {
    let failed = |port, source| StackError::Port {
        port,
        service,
        source,
    };
    let port = match port {
        0 => 0,
        port => port.checked_add(offset).ok_or_else(|| {
            let reason = "the last port number is 65535";
            failed(port, io::Error::new(io::ErrorKind::InvalidInput, reason))
        })?,
    };
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await
        .map_err(|source| failed(port, source))?;
    let address = listener
        .local_addr()
        .map_err(|source| failed(port, source))?;
    Ok((listener, address.port()))
}

fn url(port: u16) -> String {
    format!("http://{}:{port}", Ipv4Addr::LOCALHOST)
}
