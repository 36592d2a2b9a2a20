//! A text of the stored items that does not depend on randomness and time.

use std::fmt::Write;

use symdepot::cache::{Entry, Item, UploadState};

use super::World;

/// Returns one line for each item, sorted.
pub(super) fn of(world: &World) -> String {
    let mut lines: Vec<String> = world
        .records
        .items()
        .into_iter()
        // Left out: the flows fail if objects that an upload item names are absent, and a pass
        // removes the others.
        .filter(|(_, stored)| !matches!(stored.item, Item::Objects(_)))
        .map(|(key, stored)| match stored.item {
            Item::Entry(entry) => line_of(&entry),
            Item::Alias(alias) => {
                format!("alias to {} in {}", alias.target.id, alias.target.scope)
            }
            Item::Dif(dif) => {
                let refused = dif
                    .over_limit
                    .map(|missing| format!(" refused: {}", missing.detail))
                    .unwrap_or_default();
                let module = &dif.module;
                format!(
                    "dif {} for {} in {}{refused}",
                    dif.file.location, module.id, module.scope
                )
            }
            Item::Upload(upload) => {
                let ids: Vec<String> = upload
                    .objects
                    .iter()
                    .map(|object| object.module.to_string())
                    .collect();
                let state = match upload.state {
                    UploadState::Pending => "pending".to_owned(),
                    UploadState::Applied => "applied".to_owned(),
                    UploadState::Ignored { reason } => format!("ignored: {reason}"),
                    UploadState::Gone => "gone".to_owned(),
                };
                format!("upload {} {state} [{}]", upload.key, ids.join(", "))
            }
            Item::Presence(presence) => {
                let module = &presence.module;
                format!("files of {} in {}", module.id, module.scope)
            }
            Item::Generation(generation) => format!("generation of {}", generation.scope),
            Item::Objects(chunk) => format!("objects of {}", chunk.key),
            Item::Overflow(overflow) => {
                let (module, locations) = (&overflow.module, &overflow.locations);
                format!(
                    "no room in {} in {} for {locations:?}",
                    module.id, module.scope
                )
            }
            Item::Request(request) => format!("request in {}", request.scope),
            Item::Source(source) => format!("source {}", source.key),
            Item::Copy(copy) => format!("copy of {}", copy.dif.file.location),
            Item::Health(health) => format!("health of {}", health.source),
            Item::IssuedToken(token) => format!("token {} of {:?}", token.name, token.scope),
            Item::Losses(_) => "losses".to_owned(),
            Item::Wanted(wanted) => format!(
                "wanted {} in {}, asked {}",
                wanted.pdb, wanted.scope, wanted.asked
            ),
            Item::Sweep(_) | Item::OutdatedList(_) | Item::Rollout(_) => {
                format!("{} of the sweep", key.sort)
            }
            Item::Newer { schema } => format!("newer item of schema {schema} at {}", key.sort),
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

fn line_of(entry: &Entry) -> String {
    let mut line = format!(
        "{} of {} in {}:",
        entry.kind(),
        entry.module().id,
        entry.module().scope
    );
    for (name, state) in [("ready", entry.ready()), ("older", entry.older())] {
        if let Some(state) = state {
            let made_from: Vec<&str> = state
                .made_from
                .iter()
                .map(|dif| dif.location.as_str())
                .collect();
            let _ = write!(
                line,
                " {name} v{} {:?} from {}",
                state.version,
                state.quality,
                made_from.join(", ")
            );
        }
    }
    if let Some(placeholder) = entry.missing() {
        let _ = write!(
            line,
            " {:?}: {}",
            placeholder.missing.cause, placeholder.missing.detail
        );
    }
    if entry.lease().is_some() {
        line.push_str(" leased");
    }
    if let Some(build_request) = entry.build_request() {
        let _ = write!(line, " asked ({:?})", build_request.queue);
    }
    if entry.suspect().is_some() {
        line.push_str(" suspected");
    }
    line
}
