//! Transcoders as `derive` runs them: results of good tools, and isolation of bad ones.
//!
//! The tools are stand-ins: shell scripts that behave like `symcachegen.exe`, or misbehave.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "these tests create tools and check the files that they leave"
)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use symdepot::adapters::parser::transcoder::{COMMAND, ToolLimits, Transcoder, Transcoders};
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::Transcoding;
use symdepot::domain::{Cause, Missing, Written};
use symdepot::ports::{Deriver, ParseError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::Instant;

const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 512 << 20,
    cpu_seconds: 60,
    needs_seccomp: true,
};

/// The id of pe/x64/crash.pdb.
const ID: &str = "c7d4c24f-1fb8-5408-4c4c-44205044422e-1";

/// The script of a stand-in that behaves well.
const GOOD: &str = r#"
folder="$_NT_SYMCACHE_PATH/$(basename "$2")/C7D4C24F1FB854084C4C44205044422E1"
mkdir -p "$folder"
{ echo "made of $(wc -c < "$2") bytes"; env | cut -d= -f1 | sort | tr '\n' ' '; } > "$folder/$(basename "$2")-v3.1.0.symcache"
"#;

/// A deriver with one transcoder.
struct Bench {
    folder: tempfile::TempDir,
    scratch: ScratchSpace,
    deriver: ProcessDeriver,
}

impl Bench {
    fn new(script: &str, time: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("stand-in");
        std::fs::write(&tool, format!("#!/bin/sh\nset -e\n{script}\n")).unwrap();
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        Self::of(folder, tool, time)
    }

    fn of(folder: tempfile::TempDir, tool: PathBuf, time: Duration) -> Self {
        let space = folder.path().join("scratch");
        std::fs::create_dir(&space).unwrap();
        let scratch = ScratchSpace::new(space, 256 << 20);
        let tool = Transcoder {
            path: tool,
            version: "3.1.0".parse().unwrap(),
        };
        let executable = env!("CARGO_BIN_EXE_derive");
        let deriver = ProcessDeriver::new(executable, LIMITS, scratch.clone())
            .with_transcoders(Transcoders::new([tool], time));
        Self {
            folder,
            scratch,
            deriver,
        }
    }

    async fn transcode(&self, dif: &str, version: &str) -> Result<Bytes, Missing> {
        let dif = Bytes::from(fixture(dif));
        let mut scratch = self.deriver.reserve(dif.len() as u64).unwrap();
        scratch.write_at(0, dif).await.unwrap();
        let mut parser = self.deriver.open(scratch, Written::Whole).await.unwrap();
        let transcoding = Transcoding {
            pdb: "My App.pdb".to_owned(),
            debug_id: ID.parse().unwrap(),
            version: version.parse().unwrap(),
        };
        match parser.transcode(0, &transcoding).await {
            Ok(answer) => answer,
            Err(ParseError::Missing(missing)) => panic!("{missing:?}"),
            Err(ParseError::Fault(error)) => panic!("{error}"),
        }
    }

    /// Asserts that a tool left nothing behind.
    fn is_clean(&self) {
        assert_eq!(self.scratch.budget().used(), 0);
        let left: Vec<_> = std::fs::read_dir(self.folder.path().join("scratch"))
            .unwrap()
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/fixtures", name]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_tool_gets_only_its_documented_input_and_its_output_is_read() {
    let bench = Bench::new(GOOD, PATIENCE);
    let made = bench.transcode("pe/x64/crash.pdb", "3.1.0").await.unwrap();
    let made = String::from_utf8(made.to_vec()).unwrap();
    let (first, environment) = made.split_once('\n').unwrap();
    assert_eq!(
        first,
        format!("made of {} bytes", fixture("pe/x64/crash.pdb").len())
    );
    // The shell sets some of them itself.
    assert_eq!(
        environment.trim(),
        "HOME PATH PWD TMPDIR _NT_SYMBOL_PATH _NT_SYMCACHE_PATH"
    );
    bench.is_clean();
}

#[tokio::test]
async fn the_pdb_in_a_container_is_unpacked_for_it() {
    let bench = Bench::new(GOOD, PATIENCE);
    let made = bench
        .transcode("containers/crash.pd_", "3.1.0")
        .await
        .unwrap();
    let expected = format!("made of {} bytes\n", fixture("pe/x64/crash.pdb").len());
    assert!(made.starts_with(expected.as_bytes()), "{made:?}");
    bench.is_clean();
}

/// Asserts that a script fails with a reason that contains `expected`, and leaves nothing behind.
async fn assert_fails(script: &str, expected: &str) {
    let bench = Bench::new(script, PATIENCE);
    let missing = bench
        .transcode("pe/x64/crash.pdb", "3.1.0")
        .await
        .unwrap_err();
    assert_eq!(missing.cause, Cause::Malformed, "{script}");
    assert!(
        missing.detail.contains(expected),
        "{script}: {}",
        missing.detail
    );
    bench.is_clean();
}

#[tokio::test]
async fn a_tool_of_another_version_is_not_run() {
    let bench = Bench::new(GOOD, PATIENCE);
    let missing = bench
        .transcode("pe/x64/crash.pdb", "4.0.0")
        .await
        .unwrap_err();
    assert_eq!(missing.cause, Cause::Unsupported);
}

#[tokio::test]
async fn any_failure_of_a_tool_is_reported_and_leaves_nothing_behind() {
    let write = |name: &str| {
        format!(r#"d="$_NT_SYMCACHE_PATH/{name}"; mkdir -p "$(dirname "$d")"; echo x > "$d""#)
    };
    let id = "C7D4C24F1FB854084C4C44205044422E1";
    for (script, expected) in [
        (
            "echo 'no such thing' >&2; exit 3".to_owned(),
            "exited with code 3: no such thing",
        ),
        ("kill -SEGV $$".to_owned(), "killed by signal 11"),
        ("exit 0".to_owned(), "wrote no file"),
        (
            write(&format!("My App.pdb/{id}/Other.pdb-v3.1.0.symcache")),
            "instead of my app.pdb/",
        ),
        (
            write(&format!("My App.pdb/{id}/My App.pdb-v3.2.0.symcache")),
            "instead of my app.pdb/",
        ),
        (
            write("My App.pdb-v3.1.0.symcache"),
            "instead of my app.pdb/",
        ),
        (
            write(&format!(
                "My App.pdb/{}/My App.pdb-v3.1.0.symcache",
                id.replace('C', "D")
            )),
            "instead of",
        ),
        (
            format!(
                "{}; : > \"$d\"",
                write(&format!("My App.pdb/{id}/My App.pdb-v3.1.0.symcache"))
            ),
            "an empty file",
        ),
        // One endless file, and files without end.
        (
            "exec cat /dev/zero > \"$_NT_SYMCACHE_PATH/a\"".to_owned(),
            "a file of more than",
        ),
        (
            "n=0; while :; do n=$((n+1)); head -c 9000000 /dev/zero > \"$TMPDIR/$n\"; done"
                .to_owned(),
            "more than its quota",
        ),
        (
            "ln -s /etc/passwd \"$_NT_SYMCACHE_PATH/My App.pdb-v3.1.0.symcache\"".to_owned(),
            "wrote no file",
        ),
    ] {
        assert_fails(&script, expected).await;
    }
}

#[tokio::test]
async fn a_tool_that_hangs_is_killed_with_the_processes_that_it_started() {
    // It writes its process id, starts another process in the background, and waits forever.
    let script = "sh -c 'echo $$ > \"$HOME/../../pid\"; exec sleep 1000' & wait";
    let bench = Bench::new(script, Duration::from_secs(1));
    let began = Instant::now();
    let missing = bench
        .transcode("pe/x64/crash.pdb", "3.1.0")
        .await
        .unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(
        missing.detail.contains("did not finish within 1 s"),
        "{}",
        missing.detail
    );
    let pid = std::fs::read_to_string(bench.folder.path().join("pid")).unwrap();
    assert_ends(pid.trim());
    bench.is_clean();
}

/// Neither a new session nor a new process group removes a process from the reach of the
/// supervisor.
#[tokio::test]
async fn processes_that_a_tool_starts_end_with_it() {
    let script = "setsid sh -c 'echo $$ > \"$HOME/../../pid\"; exec sleep 1000' &\nset -m; sleep 1000 & wait";
    let bench = Bench::new(script, Duration::from_secs(1));
    let missing = bench
        .transcode("pe/x64/crash.pdb", "3.1.0")
        .await
        .unwrap_err();
    assert!(missing.detail.contains("within 1 s"), "{}", missing.detail);
    let pid = std::fs::read_to_string(bench.folder.path().join("pid")).unwrap();
    assert_ends(pid.trim());
    bench.is_clean();
}

#[tokio::test]
async fn a_tool_has_limits_of_memory_time_and_processes() {
    let limits = GOOD.replace(
        "env | cut -d= -f1 | sort | tr '\\n' ' '",
        "ulimit -d; ulimit -t; ulimit -c",
    );
    assert_ne!(limits, GOOD);
    let bench = Bench::new(&limits, PATIENCE);
    let made = bench.transcode("pe/x64/crash.pdb", "3.1.0").await.unwrap();
    let made = String::from_utf8(made.to_vec()).unwrap();
    let (_, set) = made.split_once('\n').unwrap();
    assert_eq!(set, "524288\n60\n0\n");
    // Together they use more than one of them may.
    let hoards = "hoard() { x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 1000; }";
    for (script, expected) in [
        (
            "for n in $(seq 100); do sleep 1000 & done; wait".to_owned(),
            "processes; the limit is 64",
        ),
        (
            format!("{hoards}\nfor n in $(seq 12); do hoard & done; wait"),
            "it uses more than 536870912 bytes of memory",
        ),
        (
            // One allocation above the limit fails before the supervisor could count it.
            "dd if=/dev/zero of=/dev/null bs=600M count=1".to_owned(),
            "exited with code 1",
        ),
    ] {
        assert_fails(&script, expected).await;
    }
}

/// The end of a function closes the pipe that the supervisor reads.
#[tokio::test]
async fn a_tool_ends_with_the_function_that_waits_for_it() {
    let limits = ToolLimits {
        file_bytes: 1 << 20,
        memory_bytes: LIMITS.memory_bytes,
        cpu_seconds: 60,
        needs_seccomp: true,
    };
    let mut over = tokio::process::Command::new(env!("CARGO_BIN_EXE_derive"))
        .arg(COMMAND)
        .arg(serde_json::to_string(&limits).unwrap())
        .args(["sh", "-c", "echo $$; exec sleep 1000"])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(over.stdout.take().unwrap()).lines();
    let pid = said.next_line().await.unwrap().unwrap();
    drop(over.stdin.take());
    assert_eq!(over.wait().await.unwrap().signal(), Some(9));
    // The tool held the pipe open.
    assert_eq!(said.next_line().await.unwrap(), None);
    assert_ends(&pid);
}

/// Waits for the end of a process that is not a child of this one.
fn assert_ends(pid: &str) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    // A process that ended long ago cannot be opened.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).unwrap();
        // The end of another child may interrupt the call.
        let has_ended = retry_on_intr(|| poll(&mut ended, Some(&patience)));
        assert_eq!(has_ended, Ok(1), "{pid:?} is still running");
    }
}

#[tokio::test]
async fn a_tool_completes_when_it_exits_even_if_a_child_process_remains() {
    let script = format!("{GOOD}\nsleep 1000 &");
    let bench = Bench::new(&script, PATIENCE);
    let began = Instant::now();
    bench.transcode("pe/x64/crash.pdb", "3.1.0").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    bench.is_clean();
}

#[tokio::test]
async fn a_missing_tool_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::of(folder, Path::new("/no/such/tool").to_owned(), PATIENCE);
    let missing = bench
        .transcode("pe/x64/crash.pdb", "3.1.0")
        .await
        .unwrap_err();
    assert!(
        missing.detail.contains("cannot run /no/such/tool"),
        "{}",
        missing.detail
    );
}

#[tokio::test]
async fn leftover_folders_of_a_killed_process_are_removed_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let space = ScratchSpace::new(folder.path(), 1 << 20);
    let in_use = space.folder(1000).unwrap();
    let left = folder.path().join("symdepot-scratch-left");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("a.pdb"), "x").unwrap();
    assert_eq!(space.clear(), 1);
    assert!(in_use.path().exists() && !left.exists());
}
