//! The four ports of the stack.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use super::StackError;
use crate::functions::Endpoints;

/// The four listeners, all on the loopback interface.
pub(super) struct Listeners {
    pub(super) address: String,
    gateway_port: u16,
    pub(super) gateway: TcpListener,
    pub(super) s3: TcpListener,
    pub(super) dynamodb: TcpListener,
    pub(super) sqs: TcpListener,
}

impl Listeners {
    pub(super) async fn bind(port: u16) -> Result<Self, StackError> {
        let gateway = bind(port, 0, "the gateway").await?;
        let s3 = bind(port, 1, "S3").await?;
        let dynamodb = bind(port, 2, "DynamoDB").await?;
        let sqs = bind(port, 3, "SQS").await?;
        let address = url(&gateway).map_err(|source| StackError::Port {
            port,
            service: "the gateway",
            source,
        })?;
        let gateway_port = gateway.local_addr().map_or(port, |address| address.port());
        Ok(Self {
            address,
            gateway_port,
            gateway,
            s3,
            dynamodb,
            sqs,
        })
    }

    pub(super) fn gateway_port(&self) -> u16 {
        self.gateway_port
    }

    pub(super) fn endpoints(&self) -> io::Result<Endpoints> {
        Ok(Endpoints {
            s3: url(&self.s3)?,
            dynamodb: url(&self.dynamodb)?,
            sqs: url(&self.sqs)?,
        })
    }
}

async fn bind(port: u16, offset: u16, service: &'static str) -> Result<TcpListener, StackError> {
    let port = match port {
        0 => 0,
        port => port.checked_add(offset).ok_or_else(|| StackError::Port {
            port,
            service,
            source: io::Error::new(io::ErrorKind::InvalidInput, "the last port number is 65535"),
        })?,
    };
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await
        .map_err(|source| StackError::Port {
            port,
            service,
            source,
        })
}

fn url(listener: &TcpListener) -> io::Result<String> {
    Ok(format!("http://{}", listener.local_addr()?))
}
