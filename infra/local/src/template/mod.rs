//! The SAM template, parsed into the resources that the local stack starts.
//!
//! The parser supports a closed subset of resource types, properties and intrinsics. Anything else
//! is an error that names the resource, the property and the line, because an omission that is
//! silent here would only be found in AWS.
//!
//! Some resources and properties are parsed, checked for references to missing resources, and then
//! have no effect: the API's authorizer and throttling, a bucket's access block, encryption,
//! versions and storage classes, log groups, access logs, topics and their policies, alarms, a
//! function's alias (there is one version) and its subnets, the roles of schedules and deployments,
//! the order of `DependsOn`, and everything under `Outputs`.
//!
//! `MachineShares` in the `Metadata` of a function is only for the local stack; CloudFormation and
//! SAM ignore it. Parameters have their defaults or the values of [`Deployment::parameters`], and a
//! resource whose condition is then false does not exist.
//!
//! `ReservedConcurrentExecutions` is only the maximum number of processes of a function. No
//! resources are reserved for it: other functions can use all of the machine's memory and time.

mod conditions;
mod error;
mod fields;
mod function;
mod intrinsics;
mod model;
mod node;
mod policies;
mod resources;
mod storage;

use std::collections::BTreeMap;
use std::path::Path;

pub use error::TemplateError;
use fields::Fields;
use function::DeclaredEvent;
pub(crate) use function::{DEFAULT_ROUTE, PATHS};
use intrinsics::{Identities, resolve};
pub use model::{
    ACCOUNT_CONCURRENCY, Bucket, DEFAULTS, Deployment, Function, LifecycleRule, MachineShare,
    Notification, Queue, QueueSource, Resource, Schedule, Table, Template, USUAL_CONCURRENCY,
    WebPages, queue_arn,
};
use node::Node;
use resources::{Declared, Kind, declare, identify, without_effect};

use crate::iam::{Policies, Role};

/// The sections of a template. The properties of its resources are not parsed yet.
struct Sections {
    declared: Vec<Declared>,
    identities: Identities,
    /// `Globals.Function`.
    defaults: Option<Node>,
}

impl Sections {
    fn read(text: &str, deployment: &Deployment<'_>) -> Result<Self, TemplateError> {
        let mut root = Fields::of(conditions::decide(Node::read(text)?, deployment)?, "")?;
        root.text("AWSTemplateFormatVersion")?;
        root.text("Description")?;
        root.choice("Transform", &["AWS::Serverless-2016-10-31"])?;
        let mut globals = root.map("Globals")?;
        let outputs = root.take("Outputs");
        let resources = root.map("Resources")?;
        root.end()?;

        let declared = resources
            .rest()
            .into_iter()
            .map(declare)
            .collect::<Result<Vec<_>, _>>()?;
        let identities = Identities {
            stack_name: deployment.stack_name.to_owned(),
            resources: declared
                .iter()
                .map(|resource| Ok((resource.id.clone(), identify(resource, deployment)?)))
                .collect::<Result<_, TemplateError>>()?,
        };

        let defaults = match globals.take("Function") {
            Some(node) => Some(resolve(&node, &identities, "Globals.Function")?),
            None => None,
        };
        globals.end()?;
        if let Some(outputs) = outputs {
            resolve(&outputs, &identities, "Outputs")?;
        }
        Ok(Self {
            declared,
            identities,
            defaults,
        })
    }
}

/// A template to which its resources are added.
struct Assembly<'a> {
    template: Template,
    identities: &'a Identities,
    /// `Globals.Function`.
    defaults: Option<Node>,
    /// The events of each function, by its index in the template.
    events: Vec<(usize, Vec<DeclaredEvent>)>,
    /// The roles, by ARN.
    roles: BTreeMap<String, Role>,
}

impl<'a> Assembly<'a> {
    fn new(identities: &'a Identities, defaults: Option<Node>) -> Self {
        let template = Template {
            functions: Vec::new(),
            buckets: Vec::new(),
            tables: Vec::new(),
            queues: Vec::new(),
            http_api: None,
            web_pages: None,
            schedules: Vec::new(),
            policies: Policies::default(),
        };
        Self {
            template,
            identities,
            defaults,
            events: Vec::new(),
            roles: BTreeMap::new(),
        }
    }

    /// Adds a resource.
    fn add(&mut self, resource: Declared) -> Result<(), TemplateError> {
        self.check_dependencies(&resource)?;
        let Declared {
            id,
            line,
            kind,
            properties,
            ..
        } = resource;
        let properties = resolve(&properties, self.identities, &id)?;
        let template = &mut self.template;
        match kind {
            Kind::Bucket => {
                let bucket = storage::bucket(&id, properties, self.identities)?;
                template.buckets.push(bucket);
            }
            Kind::Table => template.tables.push(storage::table(&id, properties)?),
            Kind::Queue => template.queues.push(storage::queue(&id, properties)?),
            Kind::Role => {
                let role = policies::role(&id, properties)?;
                self.roles.insert(role.arn(), role);
            }
            Kind::BucketPolicy => {
                let (bucket, policy) = policies::of_bucket(&id, properties)?;
                template.policies.resources.insert(bucket, policy);
            }
            Kind::QueuePolicy => {
                let (queues, policy) = policies::of_queues(&id, properties)?;
                let of_each = queues.into_iter().map(|queue| (queue, policy.clone()));
                template.policies.resources.extend(of_each);
            }
            Kind::WithoutEffect { known } => without_effect(&id, properties, known)?,
            Kind::HttpApi { pages } => {
                function::http_api(&id, properties)?;
                template.web_pages = function::web_pages(pages)?;
            }
            Kind::Function { binary, shares } => {
                let defaults = self.defaults.clone();
                let (mut function, events) = function::function(&id, binary, properties, defaults)?;
                function.shares = function::machine_shares(&id, shares, &function)?;
                self.add_function(function, events)
                    .map_err(|message| TemplateError::new(line, id, message))?;
            }
        }
        Ok(())
    }

    /// Checks that the resources in `DependsOn` exist.
    fn check_dependencies(&self, resource: &Declared) -> Result<(), TemplateError> {
        let known = &self.identities.resources;
        for dependency in &resource.depends_on {
            // SAM names the alias of a function so.
            let resource_of_alias = |name: &str| {
                let (function, _) = name.rsplit_once("Alias")?;
                known.get(function)
            };
            let is_known =
                known.contains_key(dependency) || resource_of_alias(dependency).is_some();
            if !is_known {
                let message =
                    format!("DependsOn {dependency}: it is not a resource of this template");
                return Err(TemplateError::new(
                    resource.line,
                    resource.id.as_str(),
                    message,
                ));
            }
        }
        Ok(())
    }

    /// Adds a function, unless another one has the same binary or a share of the same name.
    fn add_function(
        &mut self,
        function: Function,
        events: Vec<DeclaredEvent>,
    ) -> Result<(), String> {
        let functions = &mut self.template.functions;
        let mut others = functions.iter();
        if let Some(other) = others.find(|other| other.name == function.name) {
            return Err(format!(
                "its binary {} is also the binary of {}",
                function.name, other.logical_id
            ));
        }
        let is_claimed = |share: &&MachineShare| {
            let mut claimed = functions.iter().flat_map(|other| &other.shares);
            claimed.any(|claimed| claimed.variable == share.variable)
        };
        if let Some(share) = function.shares.iter().find(is_claimed) {
            let variable = &share.variable;
            return Err(format!("{variable} is already a share of another function"));
        }
        self.events.push((functions.len(), events));
        functions.push(function);
        Ok(())
    }

    /// Connects the resources, and gives each function its role.
    fn finish(self) -> Result<Template, TemplateError> {
        let Self {
            mut template,
            events,
            roles,
            ..
        } = self;
        for (index, events) in events {
            function::wire(&mut template, index, events)?;
        }
        template.check_queues()?;
        for function in &template.functions {
            let role = match &function.role {
                None => Role::generated(&function.logical_id),
                Some(arn) => roles.get(arn).cloned().ok_or_else(|| {
                    let message = format!("Role {arn} is not a role of this template");
                    TemplateError::new(0, &function.logical_id, message)
                })?,
            };
            let name = function.name.clone();
            template.policies.roles.insert(name, role);
        }
        Ok(template)
    }
}

impl Template {
    /// Reads the template at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or the error of [`Template::read`]; both name
    /// the file.
    pub fn load(path: &Path, deployment: &Deployment<'_>) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the template {}: {error}", path.display()))?;
        Self::read(&text, deployment).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// Returns an error if the text is not YAML, refers to something that does not exist, or uses
    /// something that the local stack does not support.
    pub fn read(text: &str, deployment: &Deployment<'_>) -> Result<Self, TemplateError> {
        let sections = Sections::read(text, deployment)?;
        let mut assembly = Assembly::new(&sections.identities, sections.defaults);
        for resource in sections.declared {
            assembly.add(resource)?;
        }
        assembly.finish()
    }

    /// Returns the function with this binary or logical id.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.name == name || function.logical_id == name)
    }

    fn check_queues(&self) -> Result<(), TemplateError> {
        let known = |name: &str| self.queues.iter().any(|queue| queue.name == name);
        for queue in &self.queues {
            if let Some((dead_letters, _)) = &queue.redrive
                && !known(dead_letters)
            {
                let message = format!(
                    "RedrivePolicy refers to {dead_letters}, which is not a queue of this template"
                );
                return Err(TemplateError::new(0, &queue.name, message));
            }
        }
        for bucket in &self.buckets {
            if let Some(unknown) = bucket
                .notifications
                .iter()
                .find(|notification| !known(&notification.queue))
            {
                let message = format!(
                    "NotificationConfiguration refers to {}, which is not a queue of this template",
                    unknown.queue
                );
                return Err(TemplateError::new(0, &bucket.logical_id, message));
            }
        }
        Ok(())
    }
}
