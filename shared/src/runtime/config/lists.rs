//! Settings that are lists: hosts, symbol servers, links that may be followed, and transcoders.

use std::path::PathBuf;

use serde_json::json;
use url::Url;

use super::{Environment, NONE};
use crate::adapters::parser::transcoder::Transcoder;
use crate::domain::{ConfiguredSource, FormatVersion, HttpSource, SourceLinks};

impl Environment<'_> {
    /// Returns the tools at these paths, each with the version that it makes.
    pub(super) fn transcoders(
        &mut self,
        paths: Vec<String>,
        versions: Vec<String>,
    ) -> Vec<Transcoder> {
        let version = "TRANSCODER_VERSION";
        if paths.len() != versions.len() {
            let (paths, versions) = (paths.len(), versions.len());
            let problem = format!("has {versions} versions for {paths} paths in TRANSCODER_PATH");
            self.problems.push((version, problem));
        }
        let mut tools: Vec<Transcoder> = Vec::new();
        for (tool, text) in paths.into_iter().zip(versions) {
            let problem = match text.parse::<FormatVersion>() {
                Err(error) => error.to_string(),
                Ok(made) if made < FormatVersion::FIRST => {
                    format!(
                        "{made} is below {}, the first version",
                        FormatVersion::FIRST
                    )
                }
                Ok(made) if tools.iter().any(|tool| tool.version.major == made.major) => {
                    format!("has two versions of major version {}", made.major)
                }
                Ok(made) => {
                    tools.push(Transcoder {
                        path: PathBuf::from(tool),
                        version: made,
                    });
                    continue;
                }
            };
            self.problems.push((version, problem));
        }
        tools
    }

    /// Reads a list of texts separated by commas; `none` is the empty list.
    pub(super) fn list(&mut self, name: &'static str) -> Vec<String> {
        let text = self.text(name);
        let texts = text.split(',').map(str::trim);
        let texts = texts.filter(|text| !text.is_empty() && *text != NONE);
        texts.map(str::to_owned).collect()
    }

    /// Reads a list of hosts, each with a port or without, and with `http://` if it is requested
    /// over that.
    pub(super) fn hosts(&mut self, name: &'static str) -> Vec<String> {
        let hosts = self.list(name);
        for text in &hosts {
            let (scheme, host) = text.split_once("://").unwrap_or(("https", text.as_str()));
            let is_host = matches!(scheme, "https" | "http")
                && format!("{scheme}://{host}/")
                    .parse::<Url>()
                    .is_ok_and(|url| url.path() == "/" && url.username().is_empty());
            if !is_host || host.contains(['/', '?', '#', '@']) {
                let problem = format!(
                    "{text:?} is not a host, or a host and a port, with http:// before it or without"
                );
                self.problems.push((name, problem));
            }
        }
        hosts
    }

    /// Parses the list of sources, and adds the one that is configured by its address only.
    pub(super) fn sources(&mut self, name: &'static str, address: &str) -> Vec<HttpSource> {
        let text = self.text(name);
        let mut json = serde_json::Deserializer::from_str(&text);
        let parsed = serde_path_to_error::deserialize::<_, Vec<ConfiguredSource>>(&mut json);
        let mut sources: Vec<HttpSource> = match parsed {
            Ok(sources) => sources.into_iter().map(|source| source.0).collect(),
            Err(_) if text.is_empty() => Vec::new(),
            Err(error) => {
                let problem = without_texts(&error.to_string());
                let problem = match self.env.stored_at.get(name) {
                    Some(place) => format!("{place} is not a list of sources: {problem}"),
                    None => format!("is not a list of sources: {problem}"),
                };
                self.problems.push((name, problem));
                Vec::new()
            }
        };
        if !matches!(address, "" | NONE) {
            let definition = json!({
                "type": "http",
                "id": "symbol-server",
                "url": address,
                "layout": {"type": "symsrv"},
                "filters": {"filetypes": ["pe", "pdb"]},
            });
            match serde_json::from_value(definition) {
                Ok(source) => sources.push(source),
                Err(error) => self.problems.push(("SYMBOL_SERVER", error.to_string())),
            }
        }
        let ids: Vec<&str> = sources.iter().map(|source| source.id.as_str()).collect();
        if let Some(twice) = (1..ids.len()).find(|at| ids[..*at].contains(&ids[*at])) {
            let problem = format!("{:?} is the id of two sources", ids[twice]);
            self.problems.push((name, problem));
        }
        for source in &sources {
            if let Err(error) = source.check_limits() {
                self.problems.push((name, error.to_string()));
            }
        }
        sources
    }

    /// Parses the rules for links to source files.
    pub(super) fn links(&mut self, name: &'static str) -> SourceLinks {
        let text = self.text(name);
        let mut json = serde_json::Deserializer::from_str(&text);
        match serde_path_to_error::deserialize(&mut json) {
            Ok(links) => links,
            Err(_) if text.is_empty() => SourceLinks::default(),
            Err(error) => {
                let problem = without_texts(&error.to_string());
                let problem = format!("is not a list of origins: {problem}");
                self.problems.push((name, problem));
                SourceLinks::default()
            }
        }
    }
}

/// Returns a problem without the quoted text in it, which may be a secret in the wrong place.
fn without_texts(problem: &str) -> String {
    let quoted = "string \"";
    match (problem.find(quoted), problem.rfind('"')) {
        (Some(begin), Some(end)) if end > begin + quoted.len() => {
            format!("{}string{}", &problem[..begin], &problem[end + 1..])
        }
        _ => problem.to_owned(),
    }
}
