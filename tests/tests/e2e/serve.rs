//! `symdepot serve`: the whole service from one file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use symdepot_tests::stack::{Addresses, Binaries, Client, Process, until, uses_in};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{PATIENCE, json_of};

/// How long the service may take to end after Ctrl-C.
const END: Duration = Duration::from_secs(10);

/// A folder that has nothing but the program.
struct OneFile {
    folder: TempDir,
    name: &'static str,
}

impl OneFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Binaries::from_env().unwrap().get("symdepot");
        std::fs::copy(program, folder.path().join("symdepot")).unwrap();
        Self {
            folder,
            name: "symdepot",
        }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    /// Renames the program.
    fn moved(self) -> Self {
        let moved = Self {
            name: "sd",
            folder: self.folder,
        };
        let before = moved.folder.path().join("symdepot");
        std::fs::rename(before, moved.program()).unwrap();
        moved
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command
            .args(arguments)
            .env_clear()
            .current_dir(self.folder.path())
            .kill_on_drop(true);
        command
    }

    /// Starts the service, and returns it when it is ready.
    async fn serve(&self) -> Child {
        self.serve_with(&[]).await.0
    }

    /// Starts the service with variables. Returns it when it is ready, with what else it prints.
    async fn serve_with(
        &self,
        variables: &[(&str, &str)],
    ) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut command = self.command(&["serve", "--port", "0"]);
        command.envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let first = first.unwrap().unwrap().unwrap_or_default();
        assert!(
            first.starts_with("symdepot serves at http://127.0.0.1:"),
            "{first}"
        );
        (child, lines)
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().await.unwrap()
    }

    /// Runs the demo with an access token.
    async fn demo_with(&self, token: &str) -> Output {
        let mut command = self.command(&["demo"]);
        command.env("SYMDEPOT_TOKEN", token).output().await.unwrap()
    }

    fn addresses(&self) -> Addresses {
        Addresses::read(&self.folder.path().join(".data/stack.json")).unwrap()
    }
}

/// Interrupts a service as Ctrl-C does, and returns how it ended.
async fn interrupt(service: &mut Child) -> ExitStatus {
    signal(service, Signal::INT);
    let ended = tokio::time::timeout(END, service.wait()).await;
    ended.unwrap().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    kill_process(Pid::from_raw(pid.unwrap()).unwrap(), signal).unwrap();
}

/// Returns what a service that has ended wrote to standard error.
async fn said(service: &mut Child) -> String {
    let mut said = String::new();
    let mut stderr = service.stderr.take().unwrap();
    stderr.read_to_string(&mut said).await.unwrap();
    said
}

/// Returns the lines up to the first one with this text.
async fn lines_until<R: AsyncRead + Unpin>(
    lines: &mut Lines<BufReader<R>>,
    text: &str,
) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let line = line.unwrap().unwrap();
        let line = line.unwrap_or_else(|| panic!("{text} is not in {read:#?}"));
        let is_last = line.contains(text);
        read.push(line);
        if is_last {
            return read;
        }
    }
}

/// Issues a token with one right in every scope, as the operator.
async fn issue(addresses: Addresses, right: &str) -> String {
    let operator = Client::new(addresses).unwrap().as_operator();
    let body = json!({"name": "of a test", "scope": "*", "rights": [right]});
    let request = operator.request(Method::POST, "/tokens").json(&body);
    let issued = operator.send("a token", request).await.unwrap();
    let issued = issued.expect(201, "a token").unwrap().body;
    issued["token"].as_str().unwrap().to_owned()
}

/// Returns where processes listen, as the kernel writes it: the address and the port in hex.
fn listening(processes: &[Process]) -> BTreeSet<String> {
    let files = processes.iter().flat_map(|process| {
        let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid));
        files.into_iter().flatten()
    });
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets: BTreeSet<PathBuf> = links.collect();
    let mut addresses = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/net/{table}"));
        for line in table.unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, state, inode) = (fields[1], fields[3], fields[9]);
            let is_own = sockets.contains(Path::new(&format!("socket:[{inode}]")));
            // 0A is LISTEN.
            if is_own && state == "0A" {
                addresses.insert(address.to_owned());
            }
        }
    }
    addresses
}

/// Returns the address of a loopback port as the kernel writes it.
fn loopback(url: &str) -> String {
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    format!("0100007F:{port:04X}")
}

async fn all_end(processes: &[Process]) {
    until("the end of all processes", END, async || {
        (!processes.iter().any(Process::is_alive)).then_some(())
    })
    .await
    .unwrap();
}

/// Asserts that the report of the sample has the names that llvm-symbolizer gives.
fn assert_names(ended: &Output) {
    let text = String::from_utf8(ended.stdout.clone()).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let expected = json_of("crash.expected.json");
    for frame in expected["frames"].as_array().unwrap() {
        let place = format!("{}:{}", frame["file"].as_str().unwrap(), frame["line"]);
        assert!(text.contains(&place), "{place} is not in:\n{text}");
    }
}

#[tokio::test]
async fn one_file_in_an_empty_folder_serves_symbolicates_ends_and_serves_again() {
    let one = OneFile::new();
    let mut service = one.serve().await;
    assert_names(&one.run(&["demo"]).await);
    // Without any setting, the service in this folder is asked.
    let report = symdepot_tests::stack::fixture("crash.json");
    let report = report.display().to_string();
    assert_names(&one.run(&["symbolicate", &report]).await);
    let doctor = one.run(&["doctor"]).await;
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");

    // The functions are processes of the one file, and end with it.
    let processes = Process::tree(service.id().unwrap());
    let functions = processes.iter().map(Process::program);
    assert!(
        functions.clone().any(|name| name == "symbolicate"),
        "{processes:?}"
    );
    assert!(
        functions.clone().any(|name| name == "derive"),
        "{processes:?}"
    );
    assert_eq!(interrupt(&mut service).await.code(), Some(0));
    all_end(&processes).await;
    // Warnings are logged, and nothing was wrong.
    assert_eq!(said(&mut service).await, "");
    // The permissions are enforced here, too.
    let uses = uses_in(&one.folder.path().join(".data/access.jsonl"));
    assert!(uses.len() > 10, "{uses:#?}");
    assert!(uses.iter().all(|it| it.denied.is_none()), "{uses:#?}");

    // The program may have been moved meanwhile; the data is still there.
    let one = one.moved();
    let mut again = one.serve().await;
    assert_names(&one.run(&["symbolicate", &report]).await);
    signal(&again, Signal::TERM);
    tokio::time::timeout(END, again.wait())
        .await
        .unwrap()
        .unwrap();
}

/// Returns the lines of the picture in the README, without those of the prompt.
fn picture() -> Vec<String> {
    let path = symdepot_tests::stack::checkout().join("docs/plots/terminal.svg");
    let svg = std::fs::read_to_string(path).unwrap();
    let line = |drawn: &str| {
        let parts = drawn.split('<').filter_map(|part| part.split_once('>'));
        let text: String = parts.map(|(_, text)| text).collect();
        [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#x27;", "'"),
            ("&amp;", "&"),
        ]
        .into_iter()
        .fold(text, |text, (escape, plain)| text.replace(escape, plain))
    };
    let drawn = svg.lines().filter(|line| line.starts_with("<text"));
    drawn.map(line).skip(1).collect()
}

#[tokio::test]
async fn the_picture_in_the_readme_is_what_the_demo_prints() {
    let one = OneFile::new();
    let mut service = one.serve().await;
    let demo = one.run(&["demo"]).await;
    let printed = String::from_utf8(demo.stdout).unwrap();
    let printed: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
    let picture = picture();
    // The terminal of the picture cuts long lines.
    let is_same = |(drawn, printed): (&String, &&str)| match drawn.strip_suffix('…') {
        Some(beginning) => printed.starts_with(beginning),
        None => drawn == printed,
    };
    let are_same = picture.len() == printed.len() && picture.iter().zip(&printed).all(is_same);
    assert!(
        are_same,
        "run docs/plots/terminal.py again: {picture:#?}, {printed:#?}"
    );
    interrupt(&mut service).await;
}

#[tokio::test]
async fn a_service_that_is_killed_leaves_no_process_behind() {
    let one = OneFile::new();
    let mut service = one.serve().await;
    assert_names(&one.run(&["demo"]).await);
    let processes = Process::tree(service.id().unwrap());
    assert!(processes.len() > 3, "{processes:?}");
    service.kill().await.unwrap();
    all_end(&processes).await;
    // The address file of the killed service does not mislead the next one.
    let mut service = one.serve().await;
    assert_names(&one.run(&["demo"]).await);
    interrupt(&mut service).await;
}

#[tokio::test]
async fn the_service_is_for_this_user_and_this_machine_alone() {
    use std::os::unix::fs::PermissionsExt;

    let one = OneFile::new();
    let mut service = one.serve().await;
    let data = one.folder.path().join(".data");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    let addresses = one.addresses();
    let listening = listening(&Process::tree(service.id().unwrap()));
    for url in [
        &addresses.gateway,
        &addresses.s3,
        &addresses.dynamodb,
        &addresses.sqs,
    ] {
        assert!(listening.contains(&loopback(url)), "{url}: {listening:?}");
    }
    // The bytes of an address are in reverse order. All of 127.0.0.0/8 is loopback.
    let is_loopback = |address: &String| address.get(6..8) == Some("7F");
    assert!(listening.iter().all(is_loopback), "{listening:?}");
    let client = Client::new(addresses.clone()).unwrap();
    for (header, value, status) in [
        ("Host", "evil.example", 421),
        ("Sec-Fetch-Site", "cross-site", 403),
    ] {
        let request = client.request(Method::POST, "/symbolicate");
        let reply = client
            .send("a web page", request.header(header, value))
            .await;
        assert_eq!(reply.unwrap().status, status, "{header}: {value}");
    }
    let about = client.request(Method::GET, "/about");
    let about = client.send("about", about).await.unwrap();
    let about: Value = about.expect(200, "about").unwrap().body;
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    // Another stack on the same data is refused, and says which process has it.
    let second = one.run(&["serve", "--port", "0"]).await;
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains(&addresses.pid.to_string()), "{said}");
    interrupt(&mut service).await;
}

#[tokio::test]
async fn with_auth_the_service_says_how_the_first_token_is_issued_and_the_demo_needs_one() {
    let one = OneFile::new();
    let (mut service, mut lines) = one.serve_with(&[("AUTH", "token")]).await;
    let printed = lines_until(&mut lines, "symdepot demo").await;
    let key = printed.iter().find(|line| line.contains("KEY=$(sed "));
    let script = format!("{}; printf %s \"$KEY\"", key.unwrap());
    let mut sh = Command::new("sh");
    let sh = sh.args(["-c", &script]).current_dir(one.folder.path());
    let key = String::from_utf8(sh.output().await.unwrap().stdout).unwrap();
    assert_eq!(key, one.addresses().operator_key, "{printed:#?}");
    let curl = format!(
        "\"x-local-operator: $KEY\" {}/tokens",
        one.addresses().gateway
    );
    assert!(
        printed.iter().any(|line| line.contains(&curl)),
        "{printed:#?}"
    );

    let refused = one.run(&["demo"]).await;
    let without_right = one
        .demo_with(&issue(one.addresses(), "download").await)
        .await;
    for (refused, status, which) in [
        (refused, "401", "Issue the first one"),
        (without_right, "403", "Issue another one"),
    ] {
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        for expected in [status, which, "x-local-operator", "set SYMDEPOT_TOKEN"] {
            assert!(said.contains(expected), "{said}");
        }
    }
    let token = issue(one.addresses(), "symbolicate").await;
    assert_names(&one.demo_with(&token).await);
    interrupt(&mut service).await;

    // A token of another service is not sent to one that requires none.
    let mut service = one.serve().await;
    assert_names(&one.demo_with("sdt_of_another_service").await);
    interrupt(&mut service).await;
}

#[tokio::test]
async fn a_setting_that_a_function_refuses_is_named_and_ends_the_service_before_it_serves() {
    let one = OneFile::new();
    let mut command = one.command(&["serve", "--port", "0"]);
    let command = command.envs([("SOURCES", "foo"), ("AUTH", "foo")]);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let ended = ended.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = String::from_utf8(ended.stderr).unwrap();
    for expected in ["SOURCES", "derive.log", "AUTH", "symbolicate.log"] {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "", "{said}");
    assert!(!one.folder.path().join(".data/stack.json").exists());
}

#[tokio::test]
async fn requests_may_define_sources_as_soon_as_the_operator_allows_it() {
    let one = OneFile::new();
    let allowed = [("ALLOW_REQUEST_SOURCES", "1")];
    let request = json!({
        "modules": [], "stacktraces": [],
        "sources": [{"id": "a", "type": "http", "url": "https://symbols.test/"}],
    });
    let mut secrets = BTreeSet::new();
    for _ in 0..2 {
        let (mut service, _lines) = one.serve_with(&allowed).await;
        let client = Client::new(one.addresses()).unwrap();
        let sent = client.request(Method::POST, "/symbolicate").json(&request);
        let answered = client.send("a definition", sent).await.unwrap();
        assert_eq!(answered.status, 200, "{}", answered.text);
        let secret = one.folder.path().join(".data/request-sources.secret");
        secrets.insert(std::fs::read_to_string(secret).unwrap());
        interrupt(&mut service).await;
    }
    assert_eq!(secrets.len(), 1, "the next start has the same secret");
}
