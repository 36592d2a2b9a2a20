//! The permissions of a stack: from its template, checked as AWS does at a deployment.

use std::path::Path;

use super::error::StackError;
use super::files::ACCESS_FILE;
use crate::iam::{Access, AccessRecord, Asked};
use crate::identity::ACCOUNT;
use crate::template::{Template, queue_arn};

/// What Lambda does with the role of a function to invoke it with the messages of a queue. Source:
/// AWS Lambda Developer Guide, "Using Lambda with Amazon SQS", execution role permissions.
const RECEIVES: [&str; 3] = [
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
];

/// Returns the permissions of a template.
///
/// AWS refuses a deployment of which a function cannot be run or invoked, or whose bucket cannot
/// send its events. So does the stack.
pub(super) fn enforce(template: &Template, data: &Path) -> Result<Access, StackError> {
    let path = data.join(ACCESS_FILE);
    let record = AccessRecord::in_file(&path).map_err(|source| StackError::file(&path, source))?;
    let access = Access::enforcing(template.policies.clone(), record);
    for function in &template.functions {
        let mut asked = Vec::new();
        for source in &function.queues {
            let queue = queue_arn(&source.queue);
            asked.extend(RECEIVES.map(|action| Asked::new(action, &queue)));
        }
        let checked = access.check_lambda(&function.name, &asked);
        let failed = |refusal| {
            let message = format!("{} cannot be deployed: {refusal}", function.logical_id);
            StackError::Permission(message)
        };
        checked.map_err(failed)?;
    }
    for bucket in &template.buckets {
        for notification in &bucket.notifications {
            let mut asked = Asked::new("sqs:SendMessage", queue_arn(&notification.queue));
            asked.context = asked
                .context
                .with("aws:SourceArn", format!("arn:aws:s3:::{}", bucket.name))
                .with("aws:SourceAccount", ACCOUNT);
            let checked = access.check_service("s3.amazonaws.com", &asked);
            let failed = |refusal| {
                let message = format!(
                    "{} cannot be deployed: its events cannot be sent: {refusal}",
                    bucket.logical_id
                );
                StackError::Permission(message)
            };
            checked.map_err(failed)?;
        }
    }
    Ok(access)
}
