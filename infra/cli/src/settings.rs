//! Which service to ask, and for which scope: from the arguments and their variables, from
//! `config.toml`, or from the address file of a stack that runs in this folder.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use symdepot::domain::Scope;
use url::Url;

use crate::arguments::ServiceArguments;
use crate::error::CliError;

/// Where a stack that was started with `symdepot serve` or `make run` writes its addresses.
const STACK_FILE: &str = ".data/stack.json";

/// The settings of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The address of the service, without a slash at its end.
    pub(crate) url: Url,
    /// Where the address is from, for people.
    pub(crate) from: String,
    /// The scope; `None` for the service's default.
    pub(crate) scope: Option<Scope>,
    /// The access token, if requests are to have one.
    pub(crate) token: Option<Token>,
}

/// An access token. It is not an argument: other users of a machine can read those.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub(crate) struct Token(String);

/// The token is not shown.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Returns the token without the spaces and line ends that it was pasted with; `None` if
    /// nothing remains. `from` is where it is from, for people.
    fn checked(&self, from: &str) -> Result<Option<Self>, CliError> {
        let token = self.0.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CliError::Settings(format!(
                "the access token in {from} has a space, a control character, or one that is not ASCII, within it: copy it again"
            )));
        }
        Ok((!token.is_empty()).then(|| Self(token.to_owned())))
    }

    /// Returns the token in the variable of this process.
    pub(crate) fn of_process() -> Result<Option<Self>, CliError> {
        let text = std::env::var_os(TOKEN_VARIABLE).unwrap_or_default();
        Self(text.to_string_lossy().into_owned()).checked(TOKEN_VARIABLE)
    }

    /// Returns the value of the header `authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// The variable with the access token.
pub(crate) const TOKEN_VARIABLE: &str = "SYMDEPOT_TOKEN";

/// `config.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    url: Option<String>,
    scope: Option<String>,
    token: Option<Token>,
    dead_letters: Option<String>,
    #[serde(default)]
    profile: BTreeMap<String, Profile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    url: Option<String>,
    scope: Option<String>,
    token: Option<Token>,
    dead_letters: Option<String>,
}

/// The part of the address file that this program needs.
#[derive(Deserialize)]
struct Stack {
    gateway: String,
    #[serde(default)]
    queues: BTreeMap<String, String>,
}

/// The name of the queue with the dead letters in the template.
const DEAD_LETTERS: &str = "DeadLetters";

impl Settings {
    /// Returns the settings, with the folders of this process.
    pub(crate) fn of_process(service: &ServiceArguments) -> Result<Self, CliError> {
        let token = Token::of_process()?;
        let settings = Self::of(
            service,
            config_of_process().as_deref(),
            Path::new(STACK_FILE),
        )?;
        Ok(Self {
            token: token.or(settings.token),
            ..settings
        })
    }

    /// Returns the settings: the arguments precede `config.toml`, which precedes the address file.
    fn of(
        service: &ServiceArguments,
        config_path: Option<&Path>,
        stack_file: &Path,
    ) -> Result<Self, CliError> {
        let profile = profile(service, config_path)?;
        let scope = match (&service.scope, &profile.scope) {
            (Some(scope), _) => Some((scope, "--scope or SYMDEPOT_SCOPE".to_owned())),
            (None, Some(scope)) => Some((scope, place_of(config_path))),
            (None, None) => None,
        };
        let scope = scope.map(|(scope, from)| {
            let scope = scope.parse::<Scope>();
            scope.map_err(|error| CliError::Settings(format!("the scope ({from}): {error}")))
        });
        let scope = scope.transpose()?;
        let (url, from) = if let Some(url) = &service.url {
            (url.clone(), "--url or SYMDEPOT_URL".to_owned())
        } else if let Some(url) = &profile.url {
            (url.clone(), place_of(config_path))
        } else if let Some(stack) = read_addresses::<Stack>(stack_file)? {
            (stack.gateway, stack_file.display().to_string())
        } else {
            let config = place_of(config_path);
            return Err(CliError::Settings(format!(
                "no service to ask: use --url, set SYMDEPOT_URL, write `url = \"…\"` to {config}, or start a stack in this folder with `symdepot serve`"
            )));
        };
        let parsed = parsed(&url, &from)?;
        let token = profile.token.as_ref();
        let token = token.map(|token| token.checked(&place_of(config_path)));
        Ok(Self {
            url: parsed,
            from,
            scope,
            token: token.transpose()?.flatten(),
        })
    }

    /// Returns the settings for a service at this address, without a scope.
    #[cfg(feature = "serve")]
    pub(crate) fn at(url: &str) -> Result<Self, CliError> {
        let from = "the address file".to_owned();
        Ok(Self {
            url: parsed(url, &from)?,
            from,
            scope: None,
            token: None,
        })
    }

    /// Returns the address for people.
    pub(crate) fn shown_address(&self) -> String {
        shown(&self.url)
    }
}

/// Returns an address for people, without a slash at its end. An access token in it is hidden, and
/// so is its query, which may be a signature: what a command prints ends up in logs.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    // Neither fails for an address with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let token = url.path().strip_prefix("/t/");
    let rest = token.map(|token| token.split_once('/').map_or("", |(_, rest)| rest));
    if let Some(rest) = rest {
        let path = format!("/t/***/{rest}");
        url.set_path(&path);
    }
    url.as_str().trim_end_matches('/').to_owned()
}

/// Returns the address of the queue with the dead letters, which has the same order of places as
/// that of the service. `queue` is the argument.
pub(crate) fn dead_letters_of_process(
    service: &ServiceArguments,
    queue: Option<&str>,
) -> Result<Url, CliError> {
    let config = config_of_process();
    dead_letters(service, queue, config.as_deref(), Path::new(STACK_FILE))
}

fn dead_letters(
    service: &ServiceArguments,
    queue: Option<&str>,
    config_path: Option<&Path>,
    stack_file: &Path,
) -> Result<Url, CliError> {
    let profile = profile(service, config_path)?;
    let of_stack = |stack: Stack| stack.queues.get(DEAD_LETTERS).cloned();
    let (url, from) = if let Some(queue) = queue {
        (
            queue.to_owned(),
            "--queue or SYMDEPOT_DEAD_LETTERS".to_owned(),
        )
    } else if let Some(queue) = profile.dead_letters {
        (queue, place_of(config_path))
    } else if let Some(queue) = read_addresses(stack_file)?.and_then(of_stack) {
        (queue, stack_file.display().to_string())
    } else {
        let config = place_of(config_path);
        return Err(CliError::Settings(format!(
            "no queue of dead letters: use --queue, set SYMDEPOT_DEAD_LETTERS, or write `dead_letters = \"…\"` to {config}; it is the output {DEAD_LETTERS} of the stack"
        )));
    };
    parsed(&url, &from)
}

/// Returns the profile that the arguments name, or what the configuration has outside of profiles.
fn profile(service: &ServiceArguments, config_path: Option<&Path>) -> Result<Profile, CliError> {
    let config = config_path
        .map(read_config)
        .transpose()?
        .unwrap_or_default();
    let Config {
        url,
        scope,
        token,
        dead_letters,
        profile: mut profiles,
    } = config;
    match &service.profile {
        None => Ok(Profile {
            url,
            scope,
            token,
            dead_letters,
        }),
        Some(name) => profiles.remove(name).ok_or_else(|| {
            let place = place_of(config_path);
            let cause = if config_path.is_some_and(Path::exists) {
                format!("{place} has no [profile.{name}]")
            } else {
                format!("there is no {place}; write [profile.{name}] with its `url` to it")
            };
            CliError::Settings(format!("no profile {name:?}: {cause}"))
        }),
    }
}

/// Returns the path of the configuration, for people.
fn place_of(config_path: Option<&Path>) -> String {
    config_path.map_or_else(|| "config.toml".to_owned(), |it| it.display().to_string())
}

fn parsed(url: &str, from: &str) -> Result<Url, CliError> {
    let invalid = |reason: String| {
        // An access token in what cannot be parsed cannot be hidden alone.
        let may_have_token = url.contains('@') || url.contains("/t/");
        CliError::Settings(if may_have_token {
            format!("the address in {from}: {reason}")
        } else {
            format!("the address {url:?} ({from}): {reason}")
        })
    };
    let expected = "expected http://… or https://…";
    let parsed = url.parse::<Url>();
    let parsed = parsed.map_err(|error| invalid(format!("{error}; {expected}")))?;
    if matches!(parsed.scheme(), "http" | "https") && parsed.host_str().is_some() {
        Ok(parsed)
    } else {
        Err(invalid(expected.to_owned()))
    }
}

fn config_of_process() -> Option<PathBuf> {
    config_path(
        std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from),
        std::env::var_os("HOME").map(PathBuf::from),
    )
}

/// Returns the path of the configuration: in `XDG_CONFIG_HOME`, or else in `~/.config`.
fn config_path(config_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    // The specification of XDG says that relative paths are to be ignored.
    let config_home = config_home.filter(|path| path.is_absolute());
    let folder = config_home.or_else(|| home.map(|home| home.join(".config")))?;
    Some(folder.join("symdepot/config.toml"))
}

fn read_config(path: &Path) -> Result<Config, CliError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Config::default()),
        Err(error) => {
            return Err(CliError::Settings(format!("{}: {error}", path.display())));
        }
    };
    let invalid = |error: toml::de::Error| {
        CliError::Settings(format!(
            "{}: {}",
            path.display(),
            error.to_string().trim_end()
        ))
    };
    toml::from_str(&text).map_err(invalid)
}

/// Reads the address file of a stack; `None` if there is none, because no stack runs there.
pub(crate) fn read_addresses<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, CliError> {
    let unreadable = |cause: String| {
        CliError::Settings(format!(
            "{}, the file with the addresses of a stack, cannot be read: {cause}; if no stack runs there, remove it",
            path.display()
        ))
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let addresses = serde_json::from_slice(&bytes);
    addresses
        .map(Some)
        .map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(
        url: Option<&str>,
        scope: Option<&str>,
        profile: Option<&str>,
    ) -> ServiceArguments {
        ServiceArguments {
            url: url.map(str::to_owned),
            scope: scope.map(str::to_owned),
            profile: profile.map(str::to_owned),
        }
    }

    #[test]
    fn an_address_is_shown_without_the_credentials_in_it() {
        for (url, expected) in [
            ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
            ("https://x.example/stage/", "https://x.example/stage"),
            ("https://sym:SECRET@x.example/a", "https://x.example/a"),
            ("https://SECRET@x.example", "https://x.example"),
            ("https://x.example/t/SECRET", "https://x.example/t/***"),
            (
                "https://x.example/t/SECRET/scope/a",
                "https://x.example/t/***/scope/a",
            ),
            (
                "https://x.example/key?X-Amz-Signature=SECRET",
                "https://x.example/key",
            ),
        ] {
            assert_eq!(shown(&url.parse().unwrap()), expected);
        }
        let error = parsed("https//sym:SECRET@x", "SYMDEPOT_URL").unwrap_err();
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }

    #[test]
    fn arguments_precede_the_configuration_which_precedes_a_running_stack() {
        let folder = tempfile::tempdir().unwrap();
        let (config, stack) = (
            folder.path().join("config.toml"),
            folder.path().join("stack.json"),
        );
        let of = |arguments: &ServiceArguments| {
            let settings = Settings::of(arguments, Some(&config), &stack);
            settings.map(|it| (it.shown_address(), it.scope.map(|scope| scope.to_string())))
        };
        let none = arguments(None, None, None);
        let error = of(&none).unwrap_err();
        assert_eq!(error.exit(), crate::Exit::Usage);
        assert!(error.to_string().contains("SYMDEPOT_URL"), "{error}");

        std::fs::write(&stack, r#"{"gateway": "http://127.0.0.1:1", "pid": 1}"#).unwrap();
        assert_eq!(of(&none).unwrap(), ("http://127.0.0.1:1".to_owned(), None));

        std::fs::write(
            &config,
            "url = 'http://a/'\nscope = 'acme'\n[profile.prod]\nurl = 'https://b/x'\n",
        )
        .unwrap();
        let acme = Some("acme".to_owned());
        assert_eq!(of(&none).unwrap(), ("http://a".to_owned(), acme));
        assert_eq!(
            of(&arguments(None, None, Some("prod"))).unwrap(),
            ("https://b/x".to_owned(), None)
        );
        assert_eq!(
            of(&arguments(Some("http://c"), Some("other"), None)).unwrap(),
            ("http://c".to_owned(), Some("other".to_owned()))
        );
    }

    #[test]
    fn a_token_belongs_to_a_profile_and_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.toml");
        let text = "url = 'http://a'\ntoken = 'secret'\n[profile.prod]\nurl = 'https://b'\n";
        std::fs::write(&config, text).unwrap();
        let of = |profile| {
            let arguments = arguments(None, None, profile);
            Settings::of(&arguments, Some(&config), Path::new("none")).unwrap()
        };
        let settings = of(None);
        let header = settings.token.as_ref().map(Token::header);
        assert_eq!(header.as_deref(), Some("Bearer secret"));
        assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        assert_eq!(of(Some("prod")).token, None);
    }

    #[test]
    fn the_dead_letters_are_in_the_same_places() {
        let folder = tempfile::tempdir().unwrap();
        let (config, stack) = (
            folder.path().join("config.toml"),
            folder.path().join("stack.json"),
        );
        let of = |profile: Option<&str>, queue: Option<&str>| {
            let arguments = arguments(None, None, profile);
            let queue = dead_letters(&arguments, queue, Some(&config), &stack);
            queue.map(|url| url.to_string())
        };
        let error = of(None, None).unwrap_err().to_string();
        assert!(error.contains("SYMDEPOT_DEAD_LETTERS"), "{error}");
        std::fs::write(
            &stack,
            r#"{"gateway": "http://127.0.0.1:1", "queues": {"DeadLetters": "http://127.0.0.1:4/0/DeadLetters"}}"#,
        )
        .unwrap();
        assert_eq!(of(None, None).unwrap(), "http://127.0.0.1:4/0/DeadLetters");
        std::fs::write(&config, "[profile.prod]\ndead_letters = 'https://q/1/dead'").unwrap();
        assert_eq!(of(Some("prod"), None).unwrap(), "https://q/1/dead");
        assert_eq!(
            of(Some("prod"), Some("https://r/d")).unwrap(),
            "https://r/d"
        );
    }

    #[test]
    fn wrong_settings_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.toml");
        let of = |arguments: &ServiceArguments| {
            let error = Settings::of(arguments, Some(&config), Path::new("absent")).unwrap_err();
            error.to_string()
        };
        let at = arguments(Some("http://a"), Some("a/b"), None);
        assert!(of(&at).contains("the scope (--scope or"), "{}", of(&at));
        for url in ["127.0.0.1:3021", "ftp://a", "a b"] {
            let text = of(&arguments(Some(url), None, None));
            assert!(text.contains(url), "{text}");
        }
        let text = of(&arguments(None, None, Some("prod")));
        assert!(text.contains("there is no "), "{text}");
        std::fs::write(&config, "scope = 'a/b'\nurl = 'http://a'\n").unwrap();
        let text = of(&arguments(None, None, Some("prod")));
        assert!(text.contains("has no [profile.prod]"), "{text}");
        let text = of(&arguments(None, None, None));
        assert!(
            text.contains("the scope (") && text.contains("config.toml"),
            "{text}"
        );
        std::fs::write(&config, "ulr = 'http://a'").unwrap();
        let text = of(&arguments(None, None, None));
        assert!(
            text.contains("ulr") && text.contains("config.toml"),
            "{text}"
        );
    }

    #[test]
    fn an_address_file_that_cannot_be_read_is_an_error_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.json");
        let read = || read_addresses::<Stack>(&path);
        assert!(read().unwrap().is_none());
        // No stack runs on a data folder that is a file.
        assert!(
            read_addresses::<Stack>(&path.join("stack.json"))
                .unwrap()
                .is_none()
        );
        std::fs::write(&path, "{\"gateway\": ").unwrap();
        assert!(
            read_addresses::<Stack>(&path.join("stack.json"))
                .unwrap()
                .is_none()
        );
        let error = read().err().unwrap().to_string();
        assert!(
            error.contains("stack.json, the file with the addresses"),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(read().is_err());
    }

    #[test]
    fn the_configuration_is_in_the_folder_of_xdg() {
        let path = |config: Option<&str>, home: Option<&str>| {
            config_path(config.map(PathBuf::from), home.map(PathBuf::from))
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            path(Some("/c"), Some("/h")),
            expected("/c/symdepot/config.toml")
        );
        assert_eq!(
            path(Some("c"), Some("/h")),
            expected("/h/.config/symdepot/config.toml")
        );
        assert_eq!(path(None, None), None);
    }
}
