//! The services, queues and schedules as tasks, and the thread of the gateway.

use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::gateway_thread::GatewayThread;
use super::listeners::Listeners;
use super::options::Options;
use super::stores::Stores;
use crate::control::Control;
use crate::event_sources::{Deliveries, QueuePoller, SharedRuns, run_schedule};
use crate::functions::Functions;
use crate::gateway::Gateway;
use crate::guard::Guard;
use crate::iam::Access;
use crate::latency::Traffic;
use crate::meter::Meter;
use crate::queues::Queues;
use crate::template::{QueueSource, Template};
use crate::{dynamodb, s3, sqs};

/// The tasks of a stack. They end after `intake` and `shutdown` are cancelled.
#[derive(Debug)]
pub(super) struct Services {
    pub(super) control: Control,
    pub(super) tasks: JoinSet<()>,
    /// Ends what invokes functions on its own: the queues and the schedules.
    pub(super) intake: CancellationToken,
    /// Ends what functions and clients call: the stores and the gateway.
    pub(super) shutdown: CancellationToken,
    pub(super) gateway: GatewayThread,
}

/// What the services call, and who may call them.
pub(super) struct Wiring<'a> {
    /// The value of the operator's header in requests of the operator.
    pub(super) operator_key: String,
    pub(super) access: Access,
    pub(super) functions: &'a Functions,
    /// The maximum number of queue events that a function processes at the same time.
    pub(super) events: usize,
}

impl Services {
    /// Serves the stores on the listeners, and calls the functions for requests, messages and
    /// schedules.
    pub(super) fn start(
        template: &Template,
        options: &Options,
        listeners: Listeners,
        stores: Stores,
        wiring: Wiring<'_>,
    ) -> io::Result<Self> {
        let Wiring {
            operator_key,
            access,
            functions,
            events,
        } = wiring;
        let guard = Guard::new(
            &options.host_names,
            listeners.gateway_port,
            template.web_pages.clone(),
        );
        let traffic = Traffic {
            meter: Meter::default(),
            latency: options.latency,
            guard: guard.clone(),
            access: access.clone(),
        };
        let control = control(template, functions, &stores, traffic.meter.clone(), access);
        let gateway = Gateway {
            functions: functions.clone(),
            function: template.http_api.clone(),
            control: control.clone(),
            guard,
            operator_key,
            timeout: options.integration_timeout,
        };
        let shutdown = CancellationToken::new();
        let mut services = Self {
            control,
            tasks: JoinSet::new(),
            intake: CancellationToken::new(),
            gateway: GatewayThread::start(listeners.gateway, gateway, shutdown.clone())?,
            shutdown,
        };
        let queues = stores.queues.clone();
        let listeners = (listeners.s3, listeners.dynamodb, listeners.sqs);
        services.serve_stores(listeners, stores, traffic);
        services.call_functions(template, functions, &queues, events);
        Ok(services)
    }

    fn serve_stores(
        &mut self,
        (s3, tables, queues): (TcpListener, TcpListener, TcpListener),
        stores: Stores,
        traffic: Traffic,
    ) {
        let ends = || self.shutdown.clone().cancelled_owned();
        self.tasks
            .spawn(stores.lifecycle.run(self.shutdown.clone()));
        self.tasks
            .spawn(s3::serve(s3, stores.objects, traffic.clone(), ends()));
        self.tasks.spawn(dynamodb::serve(
            tables,
            stores.tables,
            traffic.clone(),
            ends(),
        ));
        self.tasks
            .spawn(sqs::serve(queues, stores.queues, traffic, ends()));
    }

    fn call_functions(
        &mut self,
        template: &Template,
        functions: &Functions,
        queues: &Queues,
        events: usize,
    ) {
        let has_bucket_events = |source: &QueueSource| {
            let buckets = template.buckets.iter();
            let mut sent = buckets.flat_map(|bucket| &bucket.notifications);
            sent.any(|notification| notification.queue == source.queue)
        };
        for function in &template.functions {
            let limit = events.min(functions.concurrency(&function.name));
            let runs = SharedRuns::new(limit, function.queues.iter().any(has_bucket_events));
            for source in &function.queues {
                let poller = QueuePoller {
                    queues: queues.clone(),
                    functions: functions.clone(),
                    function: function.name.clone(),
                    source: source.clone(),
                    runs: runs.of_queue(has_bucket_events(source)),
                    deliveries: self.control.deliveries.clone(),
                };
                self.tasks.spawn(poller.run(self.intake.clone()));
            }
        }
        for schedule in &template.schedules {
            self.tasks.spawn(run_schedule(
                functions.clone(),
                schedule.clone(),
                self.intake.clone(),
            ));
        }
    }
}

fn control(
    template: &Template,
    functions: &Functions,
    stores: &Stores,
    meter: Meter,
    access: Access,
) -> Control {
    let queue_names = template.queues.iter().map(|queue| {
        let dead_letters = queue.redrive.as_ref().map(|(name, _)| name.clone());
        (queue.name.clone(), dead_letters)
    });
    Control {
        functions: functions.clone(),
        queues: stores.queues.clone(),
        objects: stores.objects.clone(),
        lifecycle: stores.lifecycle.clone(),
        queue_names: Arc::new(queue_names.collect()),
        meter,
        access,
        deliveries: Deliveries::default(),
        schedules: template.schedules.clone().into(),
    }
}
