//! DynamoDB on a file. `dynoxide` is the engine and implements the protocol; tables are created
//! from the template's own properties.
//!
//! - Clients talk to a proxy in front of the engine's HTTP server, which counts calls, and refuses
//!   web pages and what the template does not allow. The engine itself refuses none, so its server
//!   listens on an address that a page cannot find (`bind`).
//! - Writes survive a crash of the process, but not of the machine, as in the rest of the stack.
//! - [`Tables::sweep_ttl`] removes items whose time to live has passed, much sooner than AWS
//!   promises. Clients must not rely on either.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dynoxide::actions::create_table::CreateTableRequest;
use dynoxide::actions::describe_table::DescribeTableRequest;
use dynoxide::actions::describe_time_to_live::DescribeTimeToLiveRequest;
use dynoxide::actions::update_time_to_live::{TimeToLiveSpecification, UpdateTimeToLiveRequest};
use dynoxide::{DynoxideError, server};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::endpoint;
use crate::iam::{Access, Refusal, calls_of_dynamodb};
use crate::latency::Traffic;
use crate::meter::{Counted, Service, access_key};

/// The file's name in the data folder.
pub const FILE_NAME: &str = "dynamodb.sqlite3";

/// The maximum size of a request, that of a batch of items (Amazon DynamoDB API reference,
/// BatchWriteItem: 16 MB).
const MAX_REQUEST_BYTES: usize = 17 * 1024 * 1024;

/// How often expired items are removed. In AWS this takes up to days, so no client can rely on it.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// Properties of `AWS::DynamoDB::Table` that CreateTable accepts under the same name and with the
/// same structure.
const TAKEN: [&str; 9] = [
    "AttributeDefinitions",
    "BillingMode",
    "DeletionProtectionEnabled",
    "GlobalSecondaryIndexes",
    "KeySchema",
    "LocalSecondaryIndexes",
    "ProvisionedThroughput",
    "TableClass",
    "Tags",
];

/// Properties without an observable effect in the local stack.
const WITHOUT_EFFECT: [&str; 4] = [
    "ContributorInsightsSpecification",
    "OnDemandThroughput",
    "PointInTimeRecoverySpecification",
    "SSESpecification",
];

/// All tables of the stack. Clones share the same tables.
#[derive(Clone)]
pub struct Tables {
    engine: dynoxide::Database,
    path: PathBuf,
    partition_keys: PartitionKeys,
}

/// The name of the partition key of each table that was created from a template, by the name of the
/// table. Policies may have conditions on the values of these keys.
type PartitionKeys = Arc<Mutex<BTreeMap<String, String>>>;

impl std::fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tables").finish_non_exhaustive()
    }
}

/// Why tables cannot be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: DynoxideError,
    },
    /// The local stack does not support a property.
    #[error("table {table}: the property {property} is not supported by the local stack")]
    Property {
        /// The table.
        table: String,
        /// The property.
        property: String,
    },
    /// The properties do not describe a table.
    #[error("table {table}: {reason}")]
    Properties {
        /// The table.
        table: String,
        /// The reason.
        reason: String,
    },
    /// A table of this name exists with different keys.
    #[error(
        "table {table} exists with the {property} {stored}, but the template has {wanted}; remove {FILE_NAME} from the data folder to start empty"
    )]
    Changed {
        /// The table.
        table: String,
        /// The property that differs.
        property: &'static str,
        /// The stored value.
        stored: Value,
        /// The template's value.
        wanted: Value,
    },
    /// The engine returned an error.
    #[error("table {table}: {source}")]
    Engine {
        /// The table.
        table: String,
        /// The cause.
        source: DynoxideError,
    },
    /// The index for scans cannot be created.
    #[error("table {table}: cannot create the index for scans: {source}")]
    Index {
        /// The table.
        table: String,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The engine panicked.
    #[error("the DynamoDB engine panicked: {0}")]
    Panicked(String),
}

impl Tables {
    /// Opens the tables in `folder`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or written.
    pub async fn open(folder: &Path) -> Result<Self, TablesError> {
        let path = folder.join(FILE_NAME);
        blocking(move || {
            let refused = |source| TablesError::Open {
                path: path.clone(),
                source,
            };
            let engine = dynoxide::Database::new(&path.to_string_lossy()).map_err(refused)?;
            // The only option for `synchronous = NORMAL`; the default syncs after every write.
            engine.disable_bulk_loading().map_err(refused)?;
            Ok(Self {
                engine,
                path,
                partition_keys: PartitionKeys::default(),
            })
        })
        .await
    }

    /// Creates a table from the `Properties` of an `AWS::DynamoDB::Table`, unless it exists with
    /// the same keys. `name` takes precedence over the properties' own `TableName`.
    ///
    /// # Errors
    /// Returns an error if a property is not supported, the properties do not describe a table, or
    /// a table of this name exists with different keys, or the engine's error.
    pub async fn create(&self, name: &str, properties: &Value) -> Result<(), TablesError> {
        let (tables, name, properties) = (self.clone(), name.to_owned(), properties.clone());
        blocking(move || tables.create_now(&name, &properties)).await
    }

    /// Removes the items whose time to live has passed, and returns their number.
    ///
    /// # Errors
    /// Returns the engine's error.
    pub async fn sweep_ttl(&self) -> Result<usize, TablesError> {
        let tables = self.clone();
        blocking(move || {
            tables
                .engine
                .sweep_ttl()
                .map_err(|source| TablesError::Engine {
                    table: "(all)".to_owned(),
                    source,
                })
        })
        .await
    }

    /// Removes expired items every [`EXPIRY_INTERVAL`], first after one interval. Never returns;
    /// drop the future to stop it.
    async fn remove_expired(&self) {
        let first = tokio::time::Instant::now() + EXPIRY_INTERVAL;
        let mut ticks = tokio::time::interval_at(first, EXPIRY_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.sweep_ttl().await {
                Ok(0) => {}
                Ok(removed) => {
                    tracing::debug!(removed, "removed expired items");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot remove expired items; the next sweep will retry");
                }
            }
        }
    }

    fn create_now(&self, name: &str, properties: &Value) -> Result<(), TablesError> {
        let refused = |source| TablesError::Engine {
            table: name.to_owned(),
            source,
        };
        let wrong = |reason: String| TablesError::Properties {
            table: name.to_owned(),
            reason,
        };
        let (request, time_to_live) = translate(name, properties)?;
        let typed: CreateTableRequest =
            serde_json::from_value(request.clone()).map_err(|error| {
                wrong(
                    error
                        .to_string()
                        .trim_start_matches("VALIDATION:")
                        .to_owned(),
                )
            })?;
        match self.engine.create_table(typed) {
            Ok(_) => {}
            Err(DynoxideError::ResourceInUseException(_)) => self.compare(name, &request)?,
            Err(source) => return Err(refused(source)),
        }
        self.index_for_scans(name)?;
        if let Some(key) = partition_key(&request) {
            let keys = self.partition_keys.lock();
            let mut keys = keys.unwrap_or_else(PoisonError::into_inner);
            keys.insert(name.to_owned(), key.to_owned());
        }
        let Some(specification) = time_to_live else {
            return Ok(());
        };
        let wanted: TimeToLiveSpecification = serde_json::from_value(specification)
            .map_err(|error| wrong(format!("TimeToLiveSpecification: {error}")))?;
        let described = self
            .engine
            .describe_time_to_live(DescribeTimeToLiveRequest {
                table_name: name.to_owned(),
            })
            .map_err(refused)?
            .time_to_live_description;
        let is_enabled = described.time_to_live_status == "ENABLED";
        let is_same = described.attribute_name.as_deref() == Some(wanted.attribute_name.as_str());
        if is_enabled == wanted.enabled && (is_same || !is_enabled) {
            return Ok(());
        }
        let update = |specification| {
            let request = UpdateTimeToLiveRequest {
                table_name: name.to_owned(),
                time_to_live_specification: specification,
            };
            self.engine.update_time_to_live(request).map_err(refused)
        };
        if is_enabled && wanted.enabled {
            // The attribute can be changed only while time to live is disabled.
            let attribute_name = described.attribute_name.unwrap_or_default();
            update(TimeToLiveSpecification {
                attribute_name,
                enabled: false,
            })?;
        }
        update(wanted)?;
        Ok(())
    }

    /// Creates an index on the engine's own table in the order in which the engine reads the
    /// segments of a parallel scan. Without it, the engine sorts all items for each page: a scan of
    /// a million items takes hours instead of minutes.
    fn index_for_scans(&self, name: &str) -> Result<(), TablesError> {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let index = quoted(&format!("{name} by segment"));
        let statement = format!(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (hash_prefix, pk, sk)",
            quoted(name)
        );
        let created = rusqlite::Connection::open(&self.path)
            .and_then(|connection| connection.execute_batch(&statement));
        created.map_err(|source| TablesError::Index {
            table: name.to_owned(),
            source,
        })
    }

    /// Returns an error if the stored table has different keys than the request.
    fn compare(&self, name: &str, request: &Value) -> Result<(), TablesError> {
        let refused = |source| TablesError::Engine {
            table: name.to_owned(),
            source,
        };
        let described = self
            .engine
            .describe_table(DescribeTableRequest {
                table_name: name.to_owned(),
            })
            .map_err(refused)?;
        let described =
            serde_json::to_value(&described).map_err(|error| TablesError::Properties {
                table: name.to_owned(),
                reason: error.to_string(),
            })?;
        let names = |value: &Value| -> Vec<String> {
            let mut names: Vec<String> = value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|index| {
                    Some(format!(
                        "{}: {}",
                        index["IndexName"].as_str()?,
                        index["KeySchema"]
                    ))
                })
                .collect();
            names.sort();
            names
        };
        let (stored, wanted) = (&described["Table"]["KeySchema"], &request["KeySchema"]);
        if stored != wanted {
            return Err(TablesError::Changed {
                table: name.to_owned(),
                property: "KeySchema",
                stored: stored.clone(),
                wanted: wanted.clone(),
            });
        }
        for property in ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"] {
            let (stored, wanted) = (
                names(&described["Table"][property]),
                names(&request[property]),
            );
            if stored != wanted {
                return Err(TablesError::Changed {
                    table: name.to_owned(),
                    property,
                    stored: json!(stored),
                    wanted: json!(wanted),
                });
            }
        }
        Ok(())
    }
}

/// Returns the name of the partition key in a CreateTable request.
fn partition_key(request: &Value) -> Option<&str> {
    let mut keys = request["KeySchema"].as_array()?.iter();
    let key = keys.find(|key| key["KeyType"] == "HASH")?;
    key["AttributeName"].as_str()
}

/// Translates CloudFormation's properties to a CreateTable request and a specification of the time
/// to live.
fn translate(name: &str, properties: &Value) -> Result<(Value, Option<Value>), TablesError> {
    let Some(properties) = properties.as_object() else {
        return Err(TablesError::Properties {
            table: name.to_owned(),
            reason: "it has no properties".to_owned(),
        });
    };
    let mut request = json!({ "TableName": name });
    let mut time_to_live = None;
    for (property, value) in properties {
        match property.as_str() {
            "TableName" => {}
            "TimeToLiveSpecification" => time_to_live = Some(value.clone()),
            // CloudFormation has no `StreamEnabled`: a stream specification enables the stream.
            "StreamSpecification" => {
                let mut specification = value.clone();
                specification["StreamEnabled"] = true.into();
                request[property] = specification;
            }
            known if TAKEN.contains(&known) => request[property] = value.clone(),
            known if WITHOUT_EFFECT.contains(&known) => {}
            _ => {
                return Err(TablesError::Property {
                    table: name.to_owned(),
                    property: property.clone(),
                });
            }
        }
    }
    Ok((request, time_to_live))
}

/// Serves DynamoDB requests on `listener` until `shutdown` resolves and the requests in progress
/// are complete. Removes expired items every minute.
pub async fn serve(
    listener: TcpListener,
    tables: Tables,
    traffic: impl Into<Traffic>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (inner, address) = match bind().await {
        Ok(bound) => bound,
        Err(error) => {
            tracing::error!(%error, "cannot listen for the DynamoDB engine; its endpoint stays closed");
            return;
        }
    };
    let sweeper = tables.clone();
    let partition_keys = Arc::clone(&tables.partition_keys);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let engine = tokio::spawn(server::serve_with_shutdown(inner, tables.engine, async {
        // A signal and a dropped sender both end the engine.
        let _ = stopped.await;
    }));
    let mut connector = HttpConnector::new();
    // Without this, a request of more than one segment waits 40 ms for the engine's delayed
    // acknowledgement.
    connector.set_nodelay(true);
    let client: Client<_, Forwarded> = Client::builder(TokioExecutor::new()).build(connector);
    let traffic: Traffic = traffic.into();
    let access = traffic.access.clone();
    let serving = endpoint::serve(
        listener,
        Service::DynamoDb,
        traffic,
        shutdown,
        move |request| {
            let (client, address, access) = (client.clone(), address.clone(), access.clone());
            let partition_keys = Arc::clone(&partition_keys);
            async move {
                match permitted(&access, &partition_keys, request).await? {
                    Ok(request) => forward(client, address, request).await,
                    Err(refused) => Ok(refused.map(Either::Right)),
                }
            }
        },
    );
    tokio::select! {
        () = serving => {}
        () = sweeper.remove_expired() => {}
    }
    let _ = stop.send(());
    match engine.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "DynamoDB engine failed"),
        Err(error) => tracing::warn!(%error, "DynamoDB engine failed"),
    }
}

/// Returns a listener for the engine on a random loopback address: on Linux, 127.0.0.0/8 is the
/// loopback network. The engine lets pages of every origin read its responses. A page can try all
/// ports of 127.0.0.1, but not those of sixteen million addresses.
async fn bind() -> std::io::Result<(TcpListener, Authority)> {
    let [high, middle, low, ..] = *uuid::Uuid::new_v4().as_bytes();
    // Neither an address in 127.0.0.0/24, which others try, nor the broadcast address.
    let address = Ipv4Addr::new(127, high.max(1), middle, low.min(254));
    let listener = TcpListener::bind((address, 0)).await?;
    let address = listener.local_addr()?.to_string();
    Ok((listener, address.parse().map_err(std::io::Error::other)?))
}

/// The body of a request to the engine: it is read first if permissions depend on it.
type Forwarded = Either<Counted<Incoming>, Full<Bytes>>;

/// Returns the request, or the response to it if the signer lacks a permission. A request without a
/// signature is the engine's to refuse.
async fn permitted(
    access: &Access,
    partition_keys: &PartitionKeys,
    request: Request<Counted<Incoming>>,
) -> Result<Result<Request<Forwarded>, Response<Full<Bytes>>>, endpoint::Broken> {
    let (parts, body) = request.into_parts();
    let Some(access_key) = access_key(&parts.headers, &parts.uri).filter(|_| access.is_enforced())
    else {
        return Ok(Ok(Request::from_parts(parts, Either::Left(body))));
    };
    let body = match Limited::new(body, MAX_REQUEST_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Err(endpoint::Broken(error)),
    };
    let target = parts
        .headers
        .get("x-amz-target")
        .and_then(|target| target.to_str().ok());
    let operation = target
        .and_then(|target| target.rsplit_once('.'))
        .map_or("", |(_, name)| name);
    // A body that is not JSON names no table; the engine says what is wrong with it.
    let input: Value = serde_json::from_slice(&body).unwrap_or_default();
    let asked = calls_of_dynamodb::asked(operation, &input, |table| {
        let keys = partition_keys.lock();
        let keys = keys.unwrap_or_else(PoisonError::into_inner);
        keys.get(table).cloned()
    });
    Ok(match access.check(Some(access_key), &asked) {
        Ok(()) => Ok(Request::from_parts(parts, Either::Right(Full::from(body)))),
        Err(refusal) => Err(refused(&refusal)),
    })
}

/// Source: DynamoDB Developer Guide, "Error handling with DynamoDB".
fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let name = match refusal {
        Refusal::Denied(_) => "AccessDeniedException",
        Refusal::UnknownKey => "UnrecognizedClientException",
        Refusal::Unsigned => "MissingAuthenticationTokenException",
    };
    let body = json!({ "__type": format!("com.amazon.coral.service#{name}"), "Message": refusal.to_string() });
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-amz-json-1.0"),
    );
    response
}

async fn forward(
    client: Client<HttpConnector, Forwarded>,
    address: Authority,
    mut request: Request<Forwarded>,
) -> Result<Response<Either<Incoming, Full<Bytes>>>, endpoint::Broken> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(address);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|error| endpoint::Broken(error.into()))?;
    match client.request(request).await {
        Ok(response) => Ok(response.map(Either::Left)),
        Err(error) => {
            let message = format!("the DynamoDB engine does not respond: {error}");
            let body = json!({ "__type": "com.amazonaws.dynamodb.v20120810#InternalServerError", "message": message });
            let mut response = Response::new(Either::Right(Full::from(body.to_string())));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            Ok(response)
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TablesError> + Send + 'static,
) -> Result<T, TablesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(TablesError::Panicked(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_that_would_be_lost_is_refused_by_name() {
        let error = translate(
            "records",
            &json!({ "KeySchema": [], "ImportSourceSpecification": {} }),
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("ImportSourceSpecification"),
            "{error}"
        );
    }

    /// The engine accepts every preflight and has no guard in front of it (docs/security.md, F4).
    #[tokio::test]
    async fn the_engine_listens_where_no_page_can_find_it() {
        let (first, _) = bind().await.unwrap();
        let (second, _) = bind().await.unwrap();
        let (first, second) = (first.local_addr().unwrap(), second.local_addr().unwrap());
        assert!(first.ip().is_loopback() && second.ip().is_loopback());
        assert_ne!(first.ip(), second.ip());
        assert_ne!(first.ip(), Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn a_stream_of_the_template_is_an_enabled_stream() {
        let properties = json!({ "StreamSpecification": { "StreamViewType": "KEYS_ONLY" }, "TableName": "other" });
        let (request, time_to_live) = translate("records", &properties).unwrap();
        assert_eq!(
            request,
            json!({
                "TableName": "records",
                "StreamSpecification": { "StreamViewType": "KEYS_ONLY", "StreamEnabled": true },
            })
        );
        assert_eq!(time_to_live, None);
    }
}
